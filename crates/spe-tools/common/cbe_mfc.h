/* Structures and constants of the MFC that both sides use. */
#ifndef _CBE_MFC_H_
#define _CBE_MFC_H_
#include <stdint.h>

/* An element of a DMA list. */
typedef struct mfc_list_element {
	unsigned int notify : 1;
	unsigned int reserved : 15;
	unsigned int size : 16;
	unsigned int eal : 32;
} mfc_list_element_t;

/* DMA opcodes. */
#define CBE_MFC_PUT_CMD 0x20
#define CBE_MFC_PUTB_CMD 0x21
#define CBE_MFC_PUTF_CMD 0x22
#define CBE_MFC_GET_CMD 0x40
#define CBE_MFC_GETB_CMD 0x41
#define CBE_MFC_GETF_CMD 0x42

/* Conditions of a tag status update. */
#define MFC_TAG_UPDATE_IMMEDIATE 0x0
#define MFC_TAG_UPDATE_ANY 0x1
#define MFC_TAG_UPDATE_ALL 0x2

#endif

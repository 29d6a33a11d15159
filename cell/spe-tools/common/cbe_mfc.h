/* Structures and constants of the MFC that both sides use. */
#ifndef _CBE_MFC_H_
#define _CBE_MFC_H_
#include <sidecore_begin.h>
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

#ifndef __SPU__
/* Registers of problem-state areas, which spe_ps_area_get gives: mailboxes block as long as they are full
 * or empty. Plain loads and stores of these registers do the same, but cost two signals each here. */
#include <cbea_map.h>
#include <sched.h>
#ifdef __cplusplus
extern "C" {
#endif
extern int sidecore_spe_register_write(volatile void *, unsigned int);
extern unsigned int sidecore_spe_register_read(volatile void *);

static __inline__ unsigned int _spe_out_mbox_status(volatile spe_spu_control_area_t *area)
{
	return sidecore_spe_register_read(&area->SPU_Mbox_Stat) & 0xff;
}
static __inline__ unsigned int _spe_in_mbox_status(volatile spe_spu_control_area_t *area)
{
	return sidecore_spe_register_read(&area->SPU_Mbox_Stat) >> 8 & 0xff;
}
static __inline__ unsigned int _spe_out_mbox_read(volatile spe_spu_control_area_t *area)
{
	while (!_spe_out_mbox_status(area))
		sched_yield();
	return sidecore_spe_register_read(&area->SPU_Out_Mbox);
}
static __inline__ void _spe_in_mbox_write(volatile spe_spu_control_area_t *area, unsigned int word)
{
	while (!_spe_in_mbox_status(area))
		sched_yield();
	sidecore_spe_register_write(&area->SPU_In_Mbox, word);
}
static __inline__ void _spe_sig_notify_1_write(volatile spe_sig_notify_1_area_t *area, unsigned int word)
{
	sidecore_spe_register_write(&area->SPU_Sig_Notify_1, word);
}
static __inline__ void _spe_sig_notify_2_write(volatile spe_sig_notify_2_area_t *area, unsigned int word)
{
	sidecore_spe_register_write(&area->SPU_Sig_Notify_2, word);
}
#ifdef __cplusplus
}
#endif
#endif

#include <sidecore_end.h>
#endif

/* Names that libsync's headers bring along on the SPU, which programs came to use. */
#ifndef SYNC_UTILS_H
#define SYNC_UTILS_H
#include <spu_mfcio.h>

typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;

/* An address in two words. Which of them is the first is this machine's; the drivers' pass over lanes turns
 * the places that a program writes. */
typedef union {
	unsigned long long ull;
	unsigned int ui[2];
} addr64;

#ifndef likely
#define likely(x) __builtin_expect((x), 1)
#define unlikely(x) __builtin_expect((x), 0)
#endif
#ifndef ALIGN
#define ALIGN(place, bytes) (((unsigned int)(place) + (bytes) - 1) & ~((bytes) - 1))
#endif
/* The line of an address, and its word and half word within. */
#define ALIGN128_EA(ea) ((ea) & ~127ULL)
#define OFFSET128_EA_U32(ea) (((ea) & 127) / 4)
#define OFFSET128_EA_U16(ea) (((ea) & 127) / 2)
#define MFC_DMA(place, ea, bytes, tag, command) \
	spu_mfcdma64((place), (unsigned int)((ea).ull >> 32), (unsigned int)(ea).ull, (bytes), (tag), (command))
#endif

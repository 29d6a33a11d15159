/* The SPU's generic and composite intrinsics, as the C/C++ language extensions specify them.
 *
 * Elements keep their numbers: element 0 is the first in memory and holds the preferred slot. Bytes
 * within an element have this machine's order, so operations that count bytes (shuffles, shifts of the
 * quadword) translate: byte k of the SPU's register is byte k ^ (s - 1) here, s being the element's size.
 * Every argument is evaluated once.
 */
#ifndef _SPU_INTRINSICS_H_
#define _SPU_INTRINSICS_H_

/* Programs count on it. */
#include <stddef.h>
#include <vec_types.h>
#include <spu_internals.h>

#define SPU_RdEventStat 0
#define SPU_WrEventMask 1
#define SPU_WrEventAck 2
#define SPU_RdSigNotify1 3
#define SPU_RdSigNotify2 4
#define SPU_WrDec 7
#define SPU_RdDec 8
#define MFC_WrMSSyncReq 9
#define SPU_RdEventMask 11
#define SPU_RdEventStatMask 11
#define MFC_RdTagMask 12
#define SPU_RdMachStat 13
#define SPU_WrSRR0 14
#define SPU_RdSRR0 15
#define MFC_LSA 16
#define MFC_EAH 17
#define MFC_EAL 18
#define MFC_Size 19
#define MFC_TagID 20
#define MFC_Cmd 21
#define MFC_WrTagMask 22
#define MFC_WrTagUpdate 23
#define MFC_RdTagStat 24
#define MFC_RdListStallStat 25
#define MFC_WrListStallAck 26
#define MFC_RdAtomicStat 27
#define SPU_WrOutMbox 28
#define SPU_RdInMbox 29
#define SPU_WrOutIntrMbox 30

/* Classes of double-precision values for spu_testsv. */
#define SPU_SV_NEG_DENORM 0x01
#define SPU_SV_POS_DENORM 0x02
#define SPU_SV_NEG_ZERO 0x04
#define SPU_SV_POS_ZERO 0x08
#define SPU_SV_NEG_INFINITY 0x10
#define SPU_SV_POS_INFINITY 0x20
#define SPU_SV_NAN 0x40

#include <spu_si.h>

#endif

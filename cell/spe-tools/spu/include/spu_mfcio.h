/* MFC commands, mailboxes, signals, events and the decrementer, as the Cell's library reference names
 * them. */
#ifndef _SPU_MFCIO_H_
#define _SPU_MFCIO_H_
#include <sidecore_begin.h>

/* The headers of the time brought INT_MAX and its like along. */
#include <limits.h>
#include <stdint.h>
#include <cbe_mfc.h>
#include <spu_intrinsics.h>

/* Limits and alignments. */
#define MFC_MIN_DMA_SIZE_SHIFT 4
#define MFC_MAX_DMA_SIZE_SHIFT 14
#define MFC_MIN_DMA_SIZE (1 << MFC_MIN_DMA_SIZE_SHIFT)
#define MFC_MAX_DMA_SIZE (1 << MFC_MAX_DMA_SIZE_SHIFT)
#define MFC_MIN_DMA_SIZE_MASK (MFC_MIN_DMA_SIZE - 1)
#define MFC_MAX_DMA_SIZE_MASK (MFC_MAX_DMA_SIZE - 1)
#define MFC_MIN_DMA_LIST_ELEMENTS 1
#define MFC_MAX_DMA_LIST_ELEMENTS 2048
#define MFC_MIN_DMA_LIST_SIZE (MFC_MIN_DMA_LIST_ELEMENTS << 3)
#define MFC_MAX_DMA_LIST_SIZE (MFC_MAX_DMA_LIST_ELEMENTS << 3)

/* Commands. */
#define MFC_BARRIER_ENABLE 0x01
#define MFC_FENCE_ENABLE 0x02
#define MFC_LIST_ENABLE 0x04
#define MFC_RESULT_ENABLE 0x10
#define MFC_PUT_CMD 0x20
#define MFC_PUTB_CMD 0x21
#define MFC_PUTF_CMD 0x22
#define MFC_PUTL_CMD 0x24
#define MFC_PUTLB_CMD 0x25
#define MFC_PUTLF_CMD 0x26
#define MFC_PUTR_CMD 0x30
#define MFC_PUTRB_CMD 0x31
#define MFC_PUTRF_CMD 0x32
#define MFC_PUTRL_CMD 0x34
#define MFC_PUTRLB_CMD 0x35
#define MFC_PUTRLF_CMD 0x36
#define MFC_GET_CMD 0x40
#define MFC_GETB_CMD 0x41
#define MFC_GETF_CMD 0x42
#define MFC_GETL_CMD 0x44
#define MFC_GETLB_CMD 0x45
#define MFC_GETLF_CMD 0x46
#define MFC_SDCRT_CMD 0x80
#define MFC_SDCRTST_CMD 0x81
#define MFC_SDCRZ_CMD 0x89
#define MFC_SDCRST_CMD 0x8d
#define MFC_SDCRF_CMD 0x8f
#define MFC_SNDSIG_CMD 0xa0
#define MFC_SNDSIGB_CMD 0xa1
#define MFC_SNDSIGF_CMD 0xa2
#define MFC_PUTLLUC_CMD 0xb0
#define MFC_PUTLLC_CMD 0xb4
#define MFC_PUTQLLUC_CMD 0xb8
#define MFC_BARRIER_CMD 0xc0
#define MFC_EIEIO_CMD 0xc8
#define MFC_SYNC_CMD 0xcc
#define MFC_GETLLAR_CMD 0xd0

#define MFC_CMD_WORD(tid, rid, command) \
	((unsigned int)(tid) << 24 | (unsigned int)(rid) << 16 | (command))

#define mfc_ea2h(ea) ((unsigned int)((unsigned long long)(ea) >> 32))
#define mfc_ea2l(ea) ((unsigned int)(ea))
#define mfc_hl2ea(high, low) ((unsigned long long)(unsigned int)(high) << 32 | (unsigned int)(low))
#define mfc_ceil128(x) (((x) + 127) & ~127)

#define __mfc_word(ea) ((unsigned long long)(ea))
#define __mfc_dma(ls, ea, size, tag, tid, rid, command) __spu_mfc((unsigned int)(ls), __mfc_word(ea), \
	(unsigned int)(size), (unsigned int)(tag), MFC_CMD_WORD(tid, rid, command))
#define mfc_put(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_PUT_CMD)
#define mfc_putf(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_PUTF_CMD)
#define mfc_putb(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_PUTB_CMD)
#define mfc_get(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_GET_CMD)
#define mfc_getf(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_GETF_CMD)
#define mfc_getb(ls, ea, size, tag, tid, rid) __mfc_dma(ls, ea, size, tag, tid, rid, MFC_GETB_CMD)

/* Lists: the high half of the address is the list's, the low half names the list in the store. */
#define __mfc_list(ls, ea, list, bytes, tag, tid, rid, command) __spu_mfc((unsigned int)(ls), \
	(__mfc_word(ea) & 0xffffffff00000000ULL) | (unsigned int)(list), (unsigned int)(bytes), \
	(unsigned int)(tag), MFC_CMD_WORD(tid, rid, command))
#define mfc_putl(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_PUTL_CMD)
#define mfc_putlf(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_PUTLF_CMD)
#define mfc_putlb(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_PUTLB_CMD)
#define mfc_getl(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_GETL_CMD)
#define mfc_getlf(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_GETLF_CMD)
#define mfc_getlb(ls, ea, l, n, tag, tid, rid) __mfc_list(ls, ea, l, n, tag, tid, rid, MFC_GETLB_CMD)

/* Atomic lines of 128 bytes. */
#define mfc_getllar(ls, ea, tid, rid) __mfc_dma(ls, ea, 128, 0, tid, rid, MFC_GETLLAR_CMD)
#define mfc_putllc(ls, ea, tid, rid) __mfc_dma(ls, ea, 128, 0, tid, rid, MFC_PUTLLC_CMD)
#define mfc_putlluc(ls, ea, tid, rid) __mfc_dma(ls, ea, 128, 0, tid, rid, MFC_PUTLLUC_CMD)
#define mfc_putqlluc(ls, ea, tag, tid, rid) __mfc_dma(ls, ea, 128, tag, tid, rid, MFC_PUTQLLUC_CMD)
#define mfc_read_atomic_status() spu_readch(MFC_RdAtomicStat)
#define mfc_stat_atomic_status() spu_readchcnt(MFC_RdAtomicStat)
#define MFC_PUTLLC_STATUS 0x1
#define MFC_PUTLLUC_STATUS 0x2
#define MFC_GETLLAR_STATUS 0x4

/* Signals, barriers, hints of the cache. */
#define mfc_sndsig(ls, ea, tag, tid, rid) __mfc_dma(ls, ea, 4, tag, tid, rid, MFC_SNDSIG_CMD)
#define mfc_sndsigb(ls, ea, tag, tid, rid) __mfc_dma(ls, ea, 4, tag, tid, rid, MFC_SNDSIGB_CMD)
#define mfc_sndsigf(ls, ea, tag, tid, rid) __mfc_dma(ls, ea, 4, tag, tid, rid, MFC_SNDSIGF_CMD)
#define mfc_barrier(tag) __mfc_dma(0, 0, 0, tag, 0, 0, MFC_BARRIER_CMD)
#define mfc_eieio(tag, tid, rid) __mfc_dma(0, 0, 0, tag, tid, rid, MFC_EIEIO_CMD)
#define mfc_sync(tag) __mfc_dma(0, 0, 0, tag, 0, 0, MFC_SYNC_CMD)
#define mfc_sdcrt(ea, size, tag, tid, rid) __mfc_dma(0, ea, size, tag, tid, rid, MFC_SDCRT_CMD)
#define mfc_sdcrtst(ea, size, tag, tid, rid) __mfc_dma(0, ea, size, tag, tid, rid, MFC_SDCRTST_CMD)
#define mfc_sdcrz(ea, size, tag, tid, rid) __mfc_dma(0, ea, size, tag, tid, rid, MFC_SDCRZ_CMD)
#define mfc_sdcrst(ea, size, tag, tid, rid) __mfc_dma(0, ea, size, tag, tid, rid, MFC_SDCRST_CMD)
#define mfc_sdcrf(ea, size, tag, tid, rid) __mfc_dma(0, ea, size, tag, tid, rid, MFC_SDCRF_CMD)

/* Tag groups. */
#define mfc_write_tag_mask(mask) spu_writech(MFC_WrTagMask, mask)
#define mfc_read_tag_mask() spu_readch(MFC_RdTagMask)
#define mfc_write_tag_update(condition) spu_writech(MFC_WrTagUpdate, condition)
#define mfc_write_tag_update_immediate() mfc_write_tag_update(MFC_TAG_UPDATE_IMMEDIATE)
#define mfc_write_tag_update_any() mfc_write_tag_update(MFC_TAG_UPDATE_ANY)
#define mfc_write_tag_update_all() mfc_write_tag_update(MFC_TAG_UPDATE_ALL)
#define mfc_stat_tag_update() spu_readchcnt(MFC_WrTagUpdate)
#define mfc_read_tag_status() spu_readch(MFC_RdTagStat)
#define mfc_stat_tag_status() spu_readchcnt(MFC_RdTagStat)
#define mfc_read_tag_status_immediate() (mfc_write_tag_update_immediate(), mfc_read_tag_status())
#define mfc_read_tag_status_any() (mfc_write_tag_update_any(), mfc_read_tag_status())
#define mfc_read_tag_status_all() (mfc_write_tag_update_all(), mfc_read_tag_status())
#define mfc_read_list_stall_status() spu_readch(MFC_RdListStallStat)
#define mfc_stat_list_stall_status() spu_readchcnt(MFC_RdListStallStat)
#define mfc_write_list_stall_ack(tag) spu_writech(MFC_WrListStallAck, tag)
#define mfc_stat_cmd_queue() spu_readchcnt(MFC_Cmd)
#define mfc_write_multi_src_sync_request() spu_writech(MFC_WrMSSyncReq, 0)
#define mfc_stat_multi_src_sync_request() spu_readchcnt(MFC_WrMSSyncReq)

/* Tags that a program's parts share out. */
#define MFC_TAG_INVALID 0xffffffffu
#define MFC_TAG_VALID 0u
#define mfc_tag_reserve() __mfc_tag_reserve()
#define mfc_tag_release(tag) __mfc_tag_release(tag)
#define mfc_multi_tag_reserve(count) __mfc_multi_tag_reserve(count)
#define mfc_multi_tag_release(first, count) __mfc_multi_tag_release(first, count)
#ifdef __cplusplus
extern "C" {
#endif
extern unsigned int __mfc_tag_reserve(void);
extern unsigned int __mfc_tag_release(unsigned int);
extern unsigned int __mfc_multi_tag_reserve(unsigned int);
extern unsigned int __mfc_multi_tag_release(unsigned int, unsigned int);
#ifdef __cplusplus
}
#endif

/* Mailboxes and signals. */
#define spu_read_in_mbox() spu_readch(SPU_RdInMbox)
#define spu_stat_in_mbox() spu_readchcnt(SPU_RdInMbox)
#define spu_write_out_mbox(x) spu_writech(SPU_WrOutMbox, x)
#define spu_stat_out_mbox() spu_readchcnt(SPU_WrOutMbox)
#define spu_write_out_intr_mbox(x) spu_writech(SPU_WrOutIntrMbox, x)
#define spu_stat_out_intr_mbox() spu_readchcnt(SPU_WrOutIntrMbox)
#define spu_read_signal1() spu_readch(SPU_RdSigNotify1)
#define spu_stat_signal1() spu_readchcnt(SPU_RdSigNotify1)
#define spu_read_signal2() spu_readch(SPU_RdSigNotify2)
#define spu_stat_signal2() spu_readchcnt(SPU_RdSigNotify2)

/* The decrementer, and the time base's rate that programs assume. */
#define spu_write_decrementer(x) spu_writech(SPU_WrDec, x)
#define spu_read_decrementer() spu_readch(SPU_RdDec)

/* Events. */
#define MFC_TAG_STATUS_UPDATE_EVENT 0x00000001
#define MFC_LIST_STALL_NOTIFY_EVENT 0x00000002
#define MFC_COMMAND_QUEUE_AVAILABLE_EVENT 0x00000008
#define MFC_IN_MBOX_AVAILABLE_EVENT 0x00000010
#define MFC_DECREMENTER_EVENT 0x00000020
#define MFC_OUT_INTR_MBOX_AVAILABLE_EVENT 0x00000040
#define MFC_OUT_MBOX_AVAILABLE_EVENT 0x00000080
#define MFC_SIGNAL_NOTIFY_2_EVENT 0x00000100
#define MFC_SIGNAL_NOTIFY_1_EVENT 0x00000200
#define MFC_LLR_LOST_EVENT 0x00000400
#define MFC_PRIV_ATTN_EVENT 0x00000800
#define MFC_MULTI_SRC_SYNC_EVENT 0x00001000
#define spu_write_event_mask(mask) spu_writech(SPU_WrEventMask, mask)
#define spu_read_event_mask() spu_readch(SPU_RdEventMask)
#define spu_write_event_ack(mask) spu_writech(SPU_WrEventAck, mask)
#define spu_read_event_status() spu_readch(SPU_RdEventStat)
#define spu_stat_event_status() spu_readchcnt(SPU_RdEventStat)
#define spu_read_machine_status() spu_readch(SPU_RdMachStat)
#define spu_write_srr0(x) spu_writech(SPU_WrSRR0, x)
#define spu_read_srr0() spu_readch(SPU_RdSRR0)

#include <sidecore_end.h>
#endif

/* The SPU's generic and composite intrinsics, as the C/C++ language extensions specify them.
 *
 * Elements keep their numbers: element 0 is the first in memory and holds the preferred slot. Bytes
 * within an element have this machine's order, so operations that count bytes (shuffles, shifts of the
 * quadword) translate: byte k of the SPU's register is byte k ^ (s - 1) here, s being the element's size.
 * Every argument is evaluated once.
 */
#ifndef _SPU_INTRINSICS_H_
#define _SPU_INTRINSICS_H_

#include <vec_types.h>
#include <spu_internals.h>

/* Formation, conversion. */
#define spu_splats(x) __spu_splat_any(x)
#define spu_convtf(a, n) ({ __auto_type __a = (a); __spu_choose(__spu_signed(__a), \
	__spu_convtf_s((vec_int4)__a, (n)), __spu_convtf_u((vec_uint4)__a, (n))); })
#define spu_convts(a, n) __spu_convts((vec_float4)(a), (n))
#define spu_convtu(a, n) __spu_convtu((vec_float4)(a), (n))
#define spu_extend(a) ({ __auto_type __a = (a); \
	__spu_choose(sizeof(__a[0]) == 1, __spu_extend_b((vec_char16)__a), \
	__spu_choose(sizeof(__a[0]) == 2, __spu_extend_h((vec_short8)__a), \
	__spu_choose(__spu_floats(__a), __spu_extend_f((vec_float4)__a), \
	__spu_extend_w((vec_int4)__a)))); })
#define spu_roundtf(a) __spu_roundtf((vec_double2)(a))

/* Arithmetic. */
#define spu_add(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	__a + __spu_like(__typeof__(__a), __b); })
#define spu_sub(a, b) ({ __auto_type __x = (a); __auto_type __y = (b); \
	__typeof__(__spu_choose(sizeof(__x) == 16, __x, __y)) __a = \
		__spu_like(__typeof__(__spu_choose(sizeof(__x) == 16, __x, __y)), __x); \
	__a - __spu_like(__typeof__(__a), __y); })
#define spu_addx(a, b, c) ({ __auto_type __a = (a); __a + (__typeof__(__a))(b) + \
	(__typeof__(__a))((vec_uint4)(c) & 1); })
#define spu_subx(a, b, c) ({ __auto_type __a = (a); __a - (__typeof__(__a))(b) - \
	(__typeof__(__a))(1 - ((vec_uint4)(c) & 1)); })
#define spu_genc(a, b) ({ __auto_type __a = (a); \
	(__typeof__(__a))__spu_genc((vec_uint4)__a, (vec_uint4)(b)); })
#define spu_gencx(a, b, c) ({ __auto_type __a = (a); \
	(__typeof__(__a))__spu_gencx((vec_uint4)__a, (vec_uint4)(b), (vec_uint4)(c)); })
#define spu_genb(a, b) ({ __auto_type __a = (a); \
	(__typeof__(__a))__spu_genb((vec_uint4)__a, (vec_uint4)(b)); })
#define spu_genbx(a, b, c) ({ __auto_type __a = (a); \
	(__typeof__(__a))__spu_genbx((vec_uint4)__a, (vec_uint4)(b), (vec_uint4)(c)); })
#define spu_mul(a, b) ({ __auto_type __a = (a); __a * (__typeof__(__a))(b); })
#define spu_madd(a, b, c) ({ __auto_type __a = (a); __auto_type __b = (b); __auto_type __c = (c); \
	sizeof(__a[0]) == 2 \
	? (__typeof__(__c))(__spu_mulo_s((vec_short8)__a, (vec_short8)__b) + (vec_int4)__c) \
	: (__typeof__(__c))__a * (__typeof__(__c))__b + __c; })
#define spu_msub(a, b, c) ({ __auto_type __a = (a); __a * (__typeof__(__a))(b) - (__typeof__(__a))(c); })
#define spu_nmsub(a, b, c) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__typeof__(__a))(c) - __a * (__typeof__(__a))__b; })
#define spu_nmadd(a, b, c) ({ __auto_type __a = (a); -(__a * (__typeof__(__a))(b) + (__typeof__(__a))(c)); })
#define spu_mulo(a, b) ({ __auto_type __a = (a); __auto_type __b = \
	__spu_like(__typeof__(__a), b); __spu_choose(__spu_signed(__a), \
	__spu_mulo_s((vec_short8)__a, (vec_short8)__b), __spu_mulo_u((vec_ushort8)__a, (vec_ushort8)__b)); })
#define spu_mule(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); __spu_choose(__spu_signed(__a), \
	__spu_mule_s((vec_short8)__a, (vec_short8)__b), __spu_mule_u((vec_ushort8)__a, (vec_ushort8)__b)); })
#define spu_mulh(a, b) __spu_mulh((vec_short8)(a), (vec_short8)(b))
#define spu_mulsr(a, b) (__spu_mulo_s((vec_short8)(a), (vec_short8)(b)) >> 16)
#define spu_mhhadd(a, b, c) ({ __auto_type __a = (a); __auto_type __c = (c); \
	__c + (__typeof__(__c))spu_mule(__a, (b)); })
#define spu_re(a) (1.0f / (vec_float4)(a))
#define spu_rsqrte(a) __spu_rsqrte((vec_float4)(a))

/* Bytes. */
#define spu_absd(a, b) __spu_absd((vec_uchar16)(a), (vec_uchar16)(b))
#define spu_avg(a, b) __builtin_ia32_pavgb128((vec_uchar16)(a), (vec_uchar16)(b))
#define spu_sumb(a, b) __spu_sumb((vec_uchar16)(a), (vec_uchar16)(b))

/* Comparison. */
#define spu_cmpeq(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__spu_mask_of(__a))(__a == __spu_like(__typeof__(__a), __b)); })
#define spu_cmpgt(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__spu_mask_of(__a))(__a > __spu_like(__typeof__(__a), __b)); })
#define spu_cmpabseq(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__spu_mask_of(__a))(__spu_abs(__a) == __spu_abs(__b)); })
#define spu_cmpabsgt(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__spu_mask_of(__a))(__spu_abs(__a) > __spu_abs(__b)); })
#define spu_testsv(a, kinds) __spu_testsv((vec_double2)(a), (kinds))

/* Bits and masks. */
#define spu_cntb(a) __spu_cntb((vec_uchar16)(a))
#define spu_cntlz(a) __spu_cntlz((vec_uint4)(a))
#define spu_gather(a) ({ __auto_type __a = (a); __spu_gather((vec_uchar16)__a, sizeof(__a[0])); })
#define spu_maskb(x) __spu_maskb(__spu_word(x))
#define spu_maskh(x) __spu_maskh(__spu_word(x))
#define spu_maskw(x) __spu_maskw(__spu_word(x))
#define spu_sel(a, b, mask) ({ __auto_type __a = (a); vec_uint4 __m = (vec_uint4)(mask); \
	(__typeof__(__a))(((vec_uint4)__a & ~__m) | ((vec_uint4)(b) & __m)); })
#define spu_shuffle(a, b, pattern) ({ __auto_type __a = (a); (__typeof__(__a))__spu_shuffle( \
	(vec_uchar16)__a, (vec_uchar16)(b), (vec_uchar16)(pattern), sizeof(__a[0])); })

/* Logic. */
#define __spu_logic(a, b, expression) ({ __auto_type __s = (a); __auto_type __t = (b); \
	vec_uint4 __a = (vec_uint4)__s, __b = (vec_uint4)__spu_like(__typeof__(__s), __t); \
	(__typeof__(__s))(expression); })
#define spu_and(a, b) __spu_logic(a, b, __a & __b)
#define spu_andc(a, b) __spu_logic(a, b, __a & ~__b)
#define spu_eqv(a, b) __spu_logic(a, b, ~(__a ^ __b))
#define spu_nand(a, b) __spu_logic(a, b, ~(__a & __b))
#define spu_nor(a, b) __spu_logic(a, b, ~(__a | __b))
#define spu_or(a, b) __spu_logic(a, b, __a | __b)
#define spu_orc(a, b) __spu_logic(a, b, __a | ~__b)
#define spu_xor(a, b) __spu_logic(a, b, __a ^ __b)
#define spu_orx(a) ({ __auto_type __a = (a); (__typeof__(__a))__spu_orx((vec_uint4)__a); })

/* Shifts and rotations of elements. */
#define spu_rl(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_rotate((__spu_mask_of(__a))__a, __spu_like(__spu_mask_of(__a), __n)); })
#define spu_sl(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_left((__spu_mask_of(__a))__a, __spu_like(__spu_mask_of(__a), __n)); })
#define spu_rlmask(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_right((__spu_mask_of(__a))__a, -__spu_like(__spu_mask_of(__a), __n)); })
#define spu_rlmaska(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_right_signed((__spu_mask_of(__a))__a, -__spu_like(__spu_mask_of(__a), __n)); })
#define spu_sr(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_right((__spu_mask_of(__a))__a, __spu_like(__spu_mask_of(__a), __n)); })
#define spu_sra(a, n) ({ __auto_type __a = (a); __auto_type __n = (n); \
	(__typeof__(__a))__spu_right_signed((__spu_mask_of(__a))__a, __spu_like(__spu_mask_of(__a), __n)); })

/* Shifts and rotations of the quadword. */
#define __spu_quad(function, a, n) ({ __auto_type __a = (a); \
	(__typeof__(__a))function((vec_uchar16)__a, (n), sizeof(__a[0])); })
#define spu_rlqwbyte(a, n) __spu_quad(__spu_rotate_bytes, a, n)
#define spu_rlqwbytebc(a, n) __spu_quad(__spu_rotate_bytes, a, (int)(n) >> 3)
#define spu_slqwbyte(a, n) __spu_quad(__spu_left_bytes, a, n)
#define spu_slqwbytebc(a, n) __spu_quad(__spu_left_bytes, a, (int)(n) >> 3)
#define spu_rlmaskqwbyte(a, n) __spu_quad(__spu_right_bytes, a, -(int)(n))
#define spu_rlmaskqwbytebc(a, n) __spu_quad(__spu_right_bytes, a, -((int)(n) >> 3))
#define spu_srqwbyte(a, n) __spu_quad(__spu_right_bytes, a, n)
#define spu_srqwbytebc(a, n) __spu_quad(__spu_right_bytes, a, -((7 - (int)(n)) >> 3))
#define spu_rlqw(a, n) __spu_quad(__spu_rotate_bits, a, n)
#define spu_slqw(a, n) __spu_quad(__spu_left_bits, a, n)
#define spu_rlmaskqw(a, n) __spu_quad(__spu_right_bits, a, -(int)(n))
#define spu_srqw(a, n) __spu_quad(__spu_right_bits, a, n)

/* Scalars. */
#define spu_extract(a, n) ({ __auto_type __a = (a); __spu_extract(__a, (n)); })
#define spu_insert(x, a, n) ({ __auto_type __x = (x); __auto_type __a = (a); \
	__a[(n) & (16 / sizeof(__a[0]) - 1)] = __x; __a; })
#define spu_promote(x, n) ({ __auto_type __s = (x); __auto_type __p = __spu_splat_any(__s); __p; })

/* Control. */
#define spu_stop(code) __sidecore_stop(code)
#define spu_stopd() __sidecore_stop(0x3fff)
#define spu_sync() __asm__ volatile("mfence" : : : "memory")
#define spu_sync_c() __asm__ volatile("mfence" : : : "memory")
#define spu_dsync() __asm__ volatile("mfence" : : : "memory")
#define spu_ienable() ((void)0)
#define spu_idisable() ((void)0)
#define spu_mffpscr() ((vec_uint4){0, 0, 0, 0})
#define spu_mtfpscr(a) ((void)(a))
#define spu_mfspr(n) (0u)
#define spu_mtspr(n, a) ((void)(a))
#define spu_nop() ((void)0)
#define spu_lnop() ((void)0)
#define spu_hcmpeq(a, b) ((a) == (b) ? __sidecore_halt() : (void)0)
#define spu_hcmpgt(a, b) ((a) > (b) ? __sidecore_halt() : (void)0)
#define spu_bisled(function) ((void)0)
#define spu_bisled_d(function) ((void)0)
#define spu_bisled_e(function) ((void)0)

/* Channels. */
#define spu_readch(channel) ((unsigned int)__sidecore_call(1, (channel), 0, 0, 0))
#define spu_readchqw(channel) ((vec_uint4){spu_readch(channel), 0, 0, 0})
#define spu_readchcnt(channel) ((unsigned int)__sidecore_call(3, (channel), 0, 0, 0))
#define spu_writech(channel, x) ((void)__sidecore_call(2, (channel), __spu_word(x), 0, 0))
#define spu_writechqw(channel, x) ((void)__sidecore_call(2, (channel), ((vec_uint4)(x))[0], 0, 0))
#define spu_mfcdma32(ls, ea, size, tag, command) \
	__spu_mfc((unsigned int)(ls), (unsigned int)(ea), (size), (tag), (command))
#define spu_mfcdma64(ls, high, low, size, tag, command) __spu_mfc((unsigned int)(ls), \
	(unsigned long long)(unsigned int)(high) << 32 | (unsigned int)(low), (size), (tag), (command))
#define spu_mfcstat(kind) (spu_writech(23, (kind)), spu_readch(24))

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

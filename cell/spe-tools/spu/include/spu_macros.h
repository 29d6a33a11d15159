/* The SPU's intrinsics as macros of a second preprocessing: the driver's step includes them where the first
 * one has met spu_intrinsics.h. So braces with commas may stand in their arguments, as behind the functions
 * that they were, and a program's own macros see plain names.
 */
#ifndef _SPU_MACROS_H_
#define _SPU_MACROS_H_

#include "../common/sidecore_vector_macros.h"

/* Formation, conversion. */
#define spu_splats(x) __spu_splat_any(x)
#define spu_convtf(a, n) ({ __auto_type __a = (a); __spu_choose(__spu_signed(__a), \
	__spu_cut_s((vec_int4)__a, (n)), __spu_cut_u((vec_uint4)__a, (n))); })
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
#define spu_mhhadd(a, b, c) ({ __auto_type __m = (a); __auto_type __n = (b); __auto_type __o = (c); \
	__spu_choose(__spu_signed(__m), \
	__spu_mule_s((vec_short8)__m, (vec_short8)__n) + (vec_int4)__o, \
	__spu_mule_u((vec_ushort8)__m, (vec_ushort8)__n) + (vec_uint4)__o); })
#define spu_re(a) __spu_re((vec_float4)(a))
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

/* An argument that is printed as a number: of a vector the first word, as in a register of the SPU. */
#ifdef __cplusplus
#define __sidecore_print(...) (__VA_ARGS__)
#else
#define __sidecore_word(V, expression, ...) ({ union { __typeof__((void)0, (__VA_ARGS__)) __v; V __e; } \
	__u = {(__VA_ARGS__)}; expression; })
#define __sidecore_bytes(V, ...) __sidecore_word(V, (unsigned int)(unsigned char)__u.__e[0] << 24 | \
	(unsigned char)__u.__e[1] << 16 | (unsigned char)__u.__e[2] << 8 | (unsigned char)__u.__e[3], __VA_ARGS__)
#define __sidecore_halves(V, ...) __sidecore_word(V, \
	(unsigned int)(unsigned short)__u.__e[0] << 16 | (unsigned short)__u.__e[1], __VA_ARGS__)
#define __sidecore_first(V, ...) __sidecore_word(V, __u.__e[0], __VA_ARGS__)
#define __sidecore_print(...) _Generic(((void)0, (__VA_ARGS__)), \
	__spe_vec_uchar16: __sidecore_bytes(__spe_vec_uchar16, __VA_ARGS__), \
	__spe_vec_char16: __sidecore_bytes(__spe_vec_char16, __VA_ARGS__), \
	__spe_vec_ushort8: __sidecore_halves(__spe_vec_ushort8, __VA_ARGS__), \
	__spe_vec_short8: __sidecore_halves(__spe_vec_short8, __VA_ARGS__), \
	__spe_vec_uint4: __sidecore_first(__spe_vec_uint4, __VA_ARGS__), \
	__spe_vec_int4: __sidecore_first(__spe_vec_int4, __VA_ARGS__), \
	__spe_vec_ullong2: __sidecore_first(__spe_vec_ullong2, __VA_ARGS__), \
	__spe_vec_llong2: __sidecore_first(__spe_vec_llong2, __VA_ARGS__), \
	__spe_vec_float4: __sidecore_first(__spe_vec_float4, __VA_ARGS__), \
	__spe_vec_double2: __sidecore_first(__spe_vec_double2, __VA_ARGS__), \
	default: (__VA_ARGS__))
#endif

/* Control. */
#define spu_stop(code) __sidecore_stop(code)
#define spu_stopd() __sidecore_stop(0x3fff)
#define spu_sync() __asm__ volatile("mfence" : : : "memory")
#define spu_sync_c() __asm__ volatile("mfence" : : : "memory")
#define spu_dsync() __asm__ volatile("mfence" : : : "memory")
#define spu_ienable() __sidecore_ienable()
#define spu_idisable() __sidecore_idisable()
#define spu_mffpscr() ((vec_uint4)__sidecore_fpscr)
#define spu_mtfpscr(a) ((void)(__sidecore_fpscr = (__typeof__(__sidecore_fpscr))(a)))
#define spu_mfspr(n) (0u)
#define spu_mtspr(n, a) ((void)(a))
#define spu_nop() ((void)0)
#define spu_lnop() ((void)0)
#define spu_hcmpeq(a, b) ((a) == (b) ? __sidecore_halt() : (void)0)
#define spu_hcmpgt(a, b) ((a) > (b) ? __sidecore_halt() : (void)0)
#define spu_bisled(function) ((void)(spu_readchcnt(0) ? (((void (*)(void))(function))(), 0) : 0))
#define spu_bisled_d(function) (spu_idisable(), spu_bisled(function))
#define spu_bisled_e(function) (spu_ienable(), spu_bisled(function))

/* Channels. */
#define spu_readch(channel) ({ unsigned int __got = (unsigned int)__sidecore_call(1, (channel), 0, 0, 0); __got; })
#define spu_readchqw(channel) ((vec_uint4){spu_readch(channel), 0, 0, 0})
#define spu_readchcnt(channel) ({ unsigned int __got = (unsigned int)__sidecore_call(3, (channel), 0, 0, 0); __got; })
#define spu_writech(channel, x) ((void)__sidecore_call(2, (channel), __spu_word(x), 0, 0))
#define spu_writechqw(channel, x) ((void)__sidecore_call(2, (channel), ((vec_uint4)(x))[0], 0, 0))
#define spu_mfcdma32(ls, ea, size, tag, command) \
	__spu_mfc((unsigned int)(ls), (unsigned int)(ea), (size), (tag), (command))
#define spu_mfcdma64(ls, high, low, size, tag, command) __spu_mfc((unsigned int)(ls), \
	(unsigned long long)(unsigned int)(high) << 32 | (unsigned int)(low), (size), (tag), (command))
#define spu_mfcstat(kind) (spu_writech(23, (kind)), spu_readch(24))

/* Scalars and their preferred slots. */
#ifdef __SIDECORE_LANES
#define __si_name(name) __si_exact_##name
#define __si_as(T, a) __lane_cast(T, a)
#define __si_q(x) __lane_cast(qword, x)
#define __SI_SIZE 1
#define __SI_FIRST(byte) (byte)
/* Words in memory's order, from or to the register's. */
#define __si_loaded(x) ((qword)__spe_turned((__spe_vec_uchar16)(x), 3))
#else
#define __si_name(name) __si_raw_##name
#define __si_as(T, a) ((T)(a))
#define __si_q(x) ((qword)(x))
#define __SI_SIZE 4
#define __SI_FIRST(byte) 0
#define __si_loaded(x) (x)
#endif
#define si_to_char __si_name(to_char)
#define si_from_char __si_name(from_char)
#define si_to_uchar __si_name(to_uchar)
#define si_from_uchar __si_name(from_uchar)
#define si_to_short __si_name(to_short)
#define si_from_short __si_name(from_short)
#define si_to_ushort __si_name(to_ushort)
#define si_from_ushort __si_name(from_ushort)
#define si_to_int __si_name(to_int)
#define si_from_int __si_name(from_int)
#define si_to_uint __si_name(to_uint)
#define si_from_uint __si_name(from_uint)
#define si_to_llong __si_name(to_llong)
#define si_from_llong __si_name(from_llong)
#define si_to_ullong __si_name(to_ullong)
#define si_from_ullong __si_name(from_ullong)
#define si_to_float __si_name(to_float)
#define si_from_float __si_name(from_float)
#define si_to_double __si_name(to_double)
#define si_from_double __si_name(from_double)
#define si_to_ptr __si_name(to_ptr)
#define si_from_ptr __si_name(from_ptr)
#define __si_fill(T, n) ((T){0} + (__typeof__(((T){0})[0]))(n))
#define si_a(a, b) __si_q(__si_as(vec_uint4, a) + __si_as(vec_uint4, b))
#define si_ai(a, n) __si_q(__si_as(vec_uint4, a) + __si_fill(vec_uint4, n))
#define si_ah(a, b) __si_q(__si_as(vec_ushort8, a) + __si_as(vec_ushort8, b))
#define si_ahi(a, n) __si_q(__si_as(vec_ushort8, a) + __si_fill(vec_ushort8, n))
#define si_sf(a, b) __si_q(__si_as(vec_uint4, b) - __si_as(vec_uint4, a))
#define si_sfi(a, n) __si_q(__si_fill(vec_uint4, n) - __si_as(vec_uint4, a))
#define si_sfh(a, b) __si_q(__si_as(vec_ushort8, b) - __si_as(vec_ushort8, a))
#define si_sfhi(a, n) __si_q(__si_fill(vec_ushort8, n) - __si_as(vec_ushort8, a))
#define si_addx(a, b, c) __si_q(__si_as(vec_uint4, a) + __si_as(vec_uint4, b) + (__si_as(vec_uint4, c) & 1))
#define si_sfx(a, b, c) __si_q(__si_as(vec_uint4, b) - __si_as(vec_uint4, a) - (1 - (__si_as(vec_uint4, c) & 1)))
#define si_cg(a, b) __si_q(__spu_genc(__si_as(vec_uint4, a), __si_as(vec_uint4, b)))
#define si_cgx(a, b, c) __si_q(__spu_gencx(__si_as(vec_uint4, a), __si_as(vec_uint4, b), __si_as(vec_uint4, c)))
#define si_bg(a, b) __si_q(__spu_genb(__si_as(vec_uint4, b), __si_as(vec_uint4, a)))
#define si_bgx(a, b, c) __si_q(__spu_genbx(__si_as(vec_uint4, b), __si_as(vec_uint4, a), __si_as(vec_uint4, c)))
#define si_mpy(a, b) __si_q(__spu_mulo_s(__si_as(vec_short8, a), __si_as(vec_short8, b)))
#define si_mpyu(a, b) __si_q(__spu_mulo_u(__si_as(vec_ushort8, a), __si_as(vec_ushort8, b)))
#define si_mpyi(a, n) __si_q(__spu_mulo_s(__si_as(vec_short8, a), __si_fill(vec_short8, n)))
#define si_mpyui(a, n) __si_q(__spu_mulo_u(__si_as(vec_ushort8, a), __si_fill(vec_ushort8, n)))
#define si_mpya(a, b, c) __si_q(__spu_mulo_s(__si_as(vec_short8, a), __si_as(vec_short8, b)) + __si_as(vec_int4, c))
#define si_mpyh(a, b) __si_q(__spu_mulh(__si_as(vec_short8, a), __si_as(vec_short8, b)))
#define si_mpys(a, b) __si_q(__spu_mulo_s(__si_as(vec_short8, a), __si_as(vec_short8, b)) >> 16)
#define si_mpyhh(a, b) __si_q(__spu_mule_s(__si_as(vec_short8, a), __si_as(vec_short8, b)))
#define si_mpyhhu(a, b) __si_q(__spu_mule_u(__si_as(vec_ushort8, a), __si_as(vec_ushort8, b)))
#define si_mpyhha(a, b, c) __si_q(__spu_mule_s(__si_as(vec_short8, a), __si_as(vec_short8, b)) + __si_as(vec_int4, c))
#define si_mpyhhau(a, b, c) __si_q(__spu_mule_u(__si_as(vec_ushort8, a), __si_as(vec_ushort8, b)) + __si_as(vec_uint4, c))
#define si_clz(a) __si_q(__spu_cntlz(__si_as(vec_uint4, a)))
#define si_cntb(a) __si_q(__spu_cntb(__si_as(vec_uchar16, a)))
#define si_fsmb(a) __si_q(__spu_maskb(si_to_uint(a)))
#define si_fsmh(a) __si_q(__spu_maskh(si_to_uint(a)))
#define si_fsm(a) __si_q(__spu_maskw(si_to_uint(a)))
#define si_fsmbi(n) __si_q(__spu_maskb(n))
#define si_gb(a) __si_q(__spu_gather(__si_as(vec_uchar16, a), 4))
#define si_gbh(a) __si_q(__spu_gather(__si_as(vec_uchar16, a), 2))
#define si_gbb(a) __si_q(__spu_gather(__si_as(vec_uchar16, a), 1))
#define si_avgb(a, b) __si_q(__builtin_ia32_pavgb128(__si_as(vec_char16, a), __si_as(vec_char16, b)))
#define si_absdb(a, b) __si_q(__spu_absd(__si_as(vec_uchar16, a), __si_as(vec_uchar16, b)))
#define si_sumb(a, b) __si_q(__spu_sumb(__si_as(vec_uchar16, a), __si_as(vec_uchar16, b)))
#define si_xsbh(a) __si_q(__spu_extend_b(__si_as(vec_char16, a)))
#define si_xshw(a) __si_q(__spu_extend_h(__si_as(vec_short8, a)))
#define si_xswd(a) __si_q(__spu_extend_w(__si_as(vec_int4, a)))
#define si_and(a, b) __si_q(__si_as(vec_uint4, a) & __si_as(vec_uint4, b))
#define si_andbi(a, n) __si_q(__si_as(vec_uchar16, a) & __si_fill(vec_uchar16, n))
#define si_andhi(a, n) __si_q(__si_as(vec_ushort8, a) & __si_fill(vec_ushort8, n))
#define si_andi(a, n) __si_q(__si_as(vec_uint4, a) & __si_fill(vec_uint4, n))
#define si_or(a, b) __si_q(__si_as(vec_uint4, a) | __si_as(vec_uint4, b))
#define si_orbi(a, n) __si_q(__si_as(vec_uchar16, a) | __si_fill(vec_uchar16, n))
#define si_orhi(a, n) __si_q(__si_as(vec_ushort8, a) | __si_fill(vec_ushort8, n))
#define si_ori(a, n) __si_q(__si_as(vec_uint4, a) | __si_fill(vec_uint4, n))
#define si_xor(a, b) __si_q(__si_as(vec_uint4, a) ^ __si_as(vec_uint4, b))
#define si_xorbi(a, n) __si_q(__si_as(vec_uchar16, a) ^ __si_fill(vec_uchar16, n))
#define si_xorhi(a, n) __si_q(__si_as(vec_ushort8, a) ^ __si_fill(vec_ushort8, n))
#define si_xori(a, n) __si_q(__si_as(vec_uint4, a) ^ __si_fill(vec_uint4, n))
#define si_andc(a, b) __si_q(__si_as(vec_uint4, a) & ~__si_as(vec_uint4, b))
#define si_orc(a, b) __si_q(__si_as(vec_uint4, a) | ~__si_as(vec_uint4, b))
#define si_nand(a, b) __si_q(~(__si_as(vec_uint4, a) & __si_as(vec_uint4, b)))
#define si_nor(a, b) __si_q(~(__si_as(vec_uint4, a) | __si_as(vec_uint4, b)))
#define si_eqv(a, b) __si_q(~(__si_as(vec_uint4, a) ^ __si_as(vec_uint4, b)))
#define si_orx(a) __si_q(__spu_orx(__si_as(vec_uint4, a)))
#define si_selb(a, b, c) __si_q(spu_sel(__si_as(vec_uint4, a), __si_as(vec_uint4, b), __si_as(vec_uint4, c)))
#define si_shufb(a, b, c) __si_q(__spu_shuffle(__si_as(vec_uchar16, a), __si_as(vec_uchar16, b), __si_as(vec_uchar16, c), 1))
#define si_shlh(a, b) __si_q(__spu_left(__si_as(vec_ushort8, a), __si_as(vec_ushort8, b)))
#define si_shlhi(a, n) __si_q(__spu_left(__si_as(vec_ushort8, a), __si_fill(vec_ushort8, n)))
#define si_roth(a, b) __si_q(__spu_rotate(__si_as(vec_ushort8, a), __si_as(vec_ushort8, b)))
#define si_rothi(a, n) __si_q(__spu_rotate(__si_as(vec_ushort8, a), __si_fill(vec_ushort8, n)))
#define si_rothm(a, b) __si_q(__spu_right(__si_as(vec_ushort8, a), -__si_as(vec_ushort8, b)))
#define si_rothmi(a, n) __si_q(__spu_right(__si_as(vec_ushort8, a), -__si_fill(vec_ushort8, n)))
#define si_rotmah(a, b) __si_q(__spu_right_signed(__si_as(vec_ushort8, a), -__si_as(vec_ushort8, b)))
#define si_rotmahi(a, n) __si_q(__spu_right_signed(__si_as(vec_ushort8, a), -__si_fill(vec_ushort8, n)))
#define si_shl(a, b) __si_q(__spu_left(__si_as(vec_uint4, a), __si_as(vec_uint4, b)))
#define si_shli(a, n) __si_q(__spu_left(__si_as(vec_uint4, a), __si_fill(vec_uint4, n)))
#define si_rot(a, b) __si_q(__spu_rotate(__si_as(vec_uint4, a), __si_as(vec_uint4, b)))
#define si_roti(a, n) __si_q(__spu_rotate(__si_as(vec_uint4, a), __si_fill(vec_uint4, n)))
#define si_rotm(a, b) __si_q(__spu_right(__si_as(vec_uint4, a), -__si_as(vec_uint4, b)))
#define si_rotmi(a, n) __si_q(__spu_right(__si_as(vec_uint4, a), -__si_fill(vec_uint4, n)))
#define si_rotma(a, b) __si_q(__spu_right_signed(__si_as(vec_uint4, a), -__si_as(vec_uint4, b)))
#define si_rotmai(a, n) __si_q(__spu_right_signed(__si_as(vec_uint4, a), -__si_fill(vec_uint4, n)))
#define si_shlqby(a, b) __si_q(__spu_left_bytes(__si_as(vec_uchar16, a), si_to_int(b), 1))
#define si_shlqbyi(a, n) __si_q(__spu_left_bytes(__si_as(vec_uchar16, a), (n), 1))
#define si_shlqbybi(a, b) __si_q(__spu_left_bytes(__si_as(vec_uchar16, a), (si_to_int(b) >> 3), 1))
#define si_shlqbi(a, b) __si_q(__spu_left_bits(__si_as(vec_uchar16, a), si_to_int(b), __SI_SIZE))
#define si_shlqbii(a, n) __si_q(__spu_left_bits(__si_as(vec_uchar16, a), (n), __SI_SIZE))
#define si_rotqby(a, b) __si_q(__spu_rotate_bytes(__si_as(vec_uchar16, a), si_to_int(b), 1))
#define si_rotqbyi(a, n) __si_q(__spu_rotate_bytes(__si_as(vec_uchar16, a), (n), 1))
#define si_rotqbybi(a, b) __si_q(__spu_rotate_bytes(__si_as(vec_uchar16, a), (si_to_int(b) >> 3), 1))
#define si_rotqbi(a, b) __si_q(__spu_rotate_bits(__si_as(vec_uchar16, a), si_to_int(b), __SI_SIZE))
#define si_rotqbii(a, n) __si_q(__spu_rotate_bits(__si_as(vec_uchar16, a), (n), __SI_SIZE))
#define si_rotqmby(a, b) __si_q(__spu_right_bytes(__si_as(vec_uchar16, a), -si_to_int(b), 1))
#define si_rotqmbyi(a, n) __si_q(__spu_right_bytes(__si_as(vec_uchar16, a), -(n), 1))
#define si_rotqmbybi(a, b) __si_q(__spu_right_bytes(__si_as(vec_uchar16, a), -(si_to_int(b) >> 3), 1))
#define si_rotqmbi(a, b) __si_q(__spu_right_bits(__si_as(vec_uchar16, a), -si_to_int(b), __SI_SIZE))
#define si_rotqmbii(a, n) __si_q(__spu_right_bits(__si_as(vec_uchar16, a), -(n), __SI_SIZE))
#define si_ceqb(a, b) __si_q(__si_as(vec_char16, a) == __si_as(vec_char16, b))
#define si_ceqbi(a, n) __si_q(__si_as(vec_char16, a) == __si_fill(vec_char16, n))
#define si_ceqh(a, b) __si_q(__si_as(vec_short8, a) == __si_as(vec_short8, b))
#define si_ceqhi(a, n) __si_q(__si_as(vec_short8, a) == __si_fill(vec_short8, n))
#define si_ceq(a, b) __si_q(__si_as(vec_int4, a) == __si_as(vec_int4, b))
#define si_ceqi(a, n) __si_q(__si_as(vec_int4, a) == __si_fill(vec_int4, n))
#define si_cgtb(a, b) __si_q(__si_as(vec_char16, a) > __si_as(vec_char16, b))
#define si_cgtbi(a, n) __si_q(__si_as(vec_char16, a) > __si_fill(vec_char16, n))
#define si_cgth(a, b) __si_q(__si_as(vec_short8, a) > __si_as(vec_short8, b))
#define si_cgthi(a, n) __si_q(__si_as(vec_short8, a) > __si_fill(vec_short8, n))
#define si_cgt(a, b) __si_q(__si_as(vec_int4, a) > __si_as(vec_int4, b))
#define si_cgti(a, n) __si_q(__si_as(vec_int4, a) > __si_fill(vec_int4, n))
#define si_clgtb(a, b) __si_q(__si_as(vec_uchar16, a) > __si_as(vec_uchar16, b))
#define si_clgtbi(a, n) __si_q(__si_as(vec_uchar16, a) > __si_fill(vec_uchar16, n))
#define si_clgth(a, b) __si_q(__si_as(vec_ushort8, a) > __si_as(vec_ushort8, b))
#define si_clgthi(a, n) __si_q(__si_as(vec_ushort8, a) > __si_fill(vec_ushort8, n))
#define si_clgt(a, b) __si_q(__si_as(vec_uint4, a) > __si_as(vec_uint4, b))
#define si_clgti(a, n) __si_q(__si_as(vec_uint4, a) > __si_fill(vec_uint4, n))
#define si_heq(a, b) spu_hcmpeq(si_to_int(a), si_to_int(b))
#define si_heqi(a, n) spu_hcmpeq(si_to_int(a), (__typeof__(si_to_int(a)))(n))
#define si_hgt(a, b) spu_hcmpgt(si_to_int(a), si_to_int(b))
#define si_hgti(a, n) spu_hcmpgt(si_to_int(a), (__typeof__(si_to_int(a)))(n))
#define si_hlgt(a, b) spu_hcmpgt(si_to_uint(a), si_to_uint(b))
#define si_hlgti(a, n) spu_hcmpgt(si_to_uint(a), (__typeof__(si_to_uint(a)))(n))
#define si_fa(a, b) __si_q(__si_as(vec_float4, a) + __si_as(vec_float4, b))
#define si_fs(a, b) __si_q(__si_as(vec_float4, a) - __si_as(vec_float4, b))
#define si_fm(a, b) __si_q(__si_as(vec_float4, a) * __si_as(vec_float4, b))
#define si_fma(a, b, c) __si_q(__si_as(vec_float4, a) * __si_as(vec_float4, b) + __si_as(vec_float4, c))
#define si_fms(a, b, c) __si_q(__si_as(vec_float4, a) * __si_as(vec_float4, b) - __si_as(vec_float4, c))
#define si_fnms(a, b, c) __si_q(__si_as(vec_float4, c) - __si_as(vec_float4, a) * __si_as(vec_float4, b))
#define si_fceq(a, b) __si_q(__si_as(vec_float4, a) == __si_as(vec_float4, b))
#define si_fcgt(a, b) __si_q(__si_as(vec_float4, a) > __si_as(vec_float4, b))
#define si_fcmeq(a, b) __si_q(__spu_abs(__si_as(vec_float4, a)) == __spu_abs(__si_as(vec_float4, b)))
#define si_fcmgt(a, b) __si_q(__spu_abs(__si_as(vec_float4, a)) > __spu_abs(__si_as(vec_float4, b)))
#define si_dfa(a, b) __si_q(__si_as(vec_double2, a) + __si_as(vec_double2, b))
#define si_dfs(a, b) __si_q(__si_as(vec_double2, a) - __si_as(vec_double2, b))
#define si_dfm(a, b) __si_q(__si_as(vec_double2, a) * __si_as(vec_double2, b))
#define si_dfma(a, b, c) __si_q(__si_as(vec_double2, a) * __si_as(vec_double2, b) + __si_as(vec_double2, c))
#define si_dfms(a, b, c) __si_q(__si_as(vec_double2, a) * __si_as(vec_double2, b) - __si_as(vec_double2, c))
#define si_dfnms(a, b, c) __si_q(__si_as(vec_double2, c) - __si_as(vec_double2, a) * __si_as(vec_double2, b))
#define si_dfceq(a, b) __si_q(__si_as(vec_double2, a) == __si_as(vec_double2, b))
#define si_dfcgt(a, b) __si_q(__si_as(vec_double2, a) > __si_as(vec_double2, b))
#define si_dfcmeq(a, b) __si_q(__spu_abs(__si_as(vec_double2, a)) == __spu_abs(__si_as(vec_double2, b)))
#define si_dfcmgt(a, b) __si_q(__spu_abs(__si_as(vec_double2, a)) > __spu_abs(__si_as(vec_double2, b)))
#define si_dfnma(a, b, c) __si_q(-(__si_as(vec_double2, a) * __si_as(vec_double2, b) + __si_as(vec_double2, c)))
#define si_dftsv(a, n) __si_q(__spu_testsv(__si_as(vec_double2, a), n))
#define si_frest(a) __si_q(__spu_re(__si_as(vec_float4, a)))
#define si_frsqest(a) __si_q(__spu_rsqrte(__si_as(vec_float4, a)))
#define si_fi(a, b) __si_q(b)
#define si_csflt(a, n) __si_q(__spu_cut_s(__si_as(vec_int4, a), n))
#define si_cuflt(a, n) __si_q(__spu_cut_u(__si_as(vec_uint4, a), n))
#define si_cflts(a, n) __si_q(__spu_convts(__si_as(vec_float4, a), n))
#define si_cfltu(a, n) __si_q(__spu_convtu(__si_as(vec_float4, a), n))
#define si_frds(a) __si_q(__spu_roundtf(__si_as(vec_double2, a)))
#define si_fesd(a) __si_q(__spu_extend_f(__si_as(vec_float4, a)))
#define si_fscrrd() __si_q(spu_mffpscr())
#define si_fscrwr(a) spu_mtfpscr(__si_as(vec_uint4, a))
#define si_il(n) __si_q(__si_fill(vec_int4, (short)(n)))
#define si_ilh(n) __si_q(__si_fill(vec_ushort8, n))
#define si_ilhu(n) __si_q(__si_fill(vec_uint4, (unsigned int)(n) << 16))
#define si_ila(n) __si_q(__si_fill(vec_uint4, n))
#define si_iohl(a, n) __si_q(__si_as(vec_uint4, a) | ((unsigned int)(n) & 0xffff))
#define si_cbd(a, n) __si_insertion(si_to_uint(a) + (n), 1, __SI_FIRST(3))
#define si_cbx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 1, __SI_FIRST(3))
#define si_chd(a, n) __si_insertion(si_to_uint(a) + (n), 2, __SI_FIRST(2))
#define si_chx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 2, __SI_FIRST(2))
#define si_cwd(a, n) __si_insertion(si_to_uint(a) + (n), 4, 0)
#define si_cwx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 4, 0)
#define si_cdd(a, n) __si_insertion(si_to_uint(a) + (n), 8, 0)
#define si_cdx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 8, 0)
#define __si_at(address) (*(qword *)(__UINTPTR_TYPE__)((address) & ~15u))
#define __si_raw_lqd(a, n) __si_at(si_to_uint(a) + (n))
#define __si_raw_lqx(a, b) __si_at(si_to_uint(a) + si_to_uint(b))
#define __si_raw_lqa(n) __si_at((unsigned int)(n))
#define __si_raw_lqr(n) __si_at((unsigned int)(n))
#define si_lqd(a, n) __si_loaded(__si_raw_lqd(a, n))
#define si_lqx(a, b) __si_loaded(__si_raw_lqx(a, b))
#define si_lqa(n) __si_loaded(__si_raw_lqa(n))
#define si_lqr(n) __si_loaded(__si_raw_lqr(n))
#define si_stqd(x, a, n) ((void)(__si_raw_lqd(a, n) = __si_loaded(x)))
#define si_stqx(x, a, b) ((void)(__si_raw_lqx(a, b) = __si_loaded(x)))
#define si_stqa(x, n) ((void)(__si_raw_lqa(n) = __si_loaded(x)))
#define si_stqr(x, n) ((void)(__si_raw_lqr(n) = __si_loaded(x)))
#define si_rdch(n) si_from_uint(spu_readch(n))
#define si_rchcnt(n) si_from_uint(spu_readchcnt(n))
#define si_wrch(n, a) spu_writech(n, si_to_uint(a))
#define si_stop(code) spu_stop(code)
#define si_sync() spu_sync()
#define si_dsync() spu_dsync()
#define si_nop() spu_nop()
#define si_lnop() spu_lnop()
#define si_stopd(a, b, c) spu_stopd()
#define si_syncc() spu_sync_c()
#define si_mfspr(n) si_from_uint(0)
#define si_mtspr(n, a) ((void)(a))
#define si_bisled(function) spu_bisled(si_to_ptr(function))
#define si_bisledd(function) spu_bisled_d(si_to_ptr(function))
#define si_bislede(function) spu_bisled_e(si_to_ptr(function))

#endif

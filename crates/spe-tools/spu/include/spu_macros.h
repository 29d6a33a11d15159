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
#define spu_mhhadd(a, b, c) ({ __auto_type __m = (a); __auto_type __n = (b); __auto_type __o = (c); \
	__spu_choose(__spu_signed(__m), \
	__spu_mule_s((vec_short8)__m, (vec_short8)__n) + (vec_int4)__o, \
	__spu_mule_u((vec_ushort8)__m, (vec_ushort8)__n) + (vec_uint4)__o); })
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

/* Scalars and their preferred slots. */
#define __si_fill(T, n) ((T){0} + (__typeof__(((T){0})[0]))(n))
#define si_a(a, b) ((qword)((vec_uint4)(a) + (vec_uint4)(b)))
#define si_ai(a, n) ((qword)((vec_uint4)(a) + __si_fill(vec_uint4, n)))
#define si_ah(a, b) ((qword)((vec_ushort8)(a) + (vec_ushort8)(b)))
#define si_ahi(a, n) ((qword)((vec_ushort8)(a) + __si_fill(vec_ushort8, n)))
#define si_sf(a, b) ((qword)((vec_uint4)(b) - (vec_uint4)(a)))
#define si_sfi(a, n) ((qword)(__si_fill(vec_uint4, n) - (vec_uint4)(a)))
#define si_sfh(a, b) ((qword)((vec_ushort8)(b) - (vec_ushort8)(a)))
#define si_sfhi(a, n) ((qword)(__si_fill(vec_ushort8, n) - (vec_ushort8)(a)))
#define si_addx(a, b, c) ((qword)((vec_uint4)(a) + (vec_uint4)(b) + ((vec_uint4)(c) & 1)))
#define si_sfx(a, b, c) ((qword)((vec_uint4)(b) - (vec_uint4)(a) - (1 - ((vec_uint4)(c) & 1))))
#define si_cg(a, b) ((qword)(__spu_genc((vec_uint4)(a), (vec_uint4)(b))))
#define si_cgx(a, b, c) ((qword)(__spu_gencx((vec_uint4)(a), (vec_uint4)(b), (vec_uint4)(c))))
#define si_bg(a, b) ((qword)(__spu_genb((vec_uint4)(b), (vec_uint4)(a))))
#define si_bgx(a, b, c) ((qword)(__spu_genbx((vec_uint4)(b), (vec_uint4)(a), (vec_uint4)(c))))
#define si_mpy(a, b) ((qword)(__spu_mulo_s((vec_short8)(a), (vec_short8)(b))))
#define si_mpyu(a, b) ((qword)(__spu_mulo_u((vec_ushort8)(a), (vec_ushort8)(b))))
#define si_mpyi(a, n) ((qword)(__spu_mulo_s((vec_short8)(a), __si_fill(vec_short8, n))))
#define si_mpyui(a, n) ((qword)(__spu_mulo_u((vec_ushort8)(a), __si_fill(vec_ushort8, n))))
#define si_mpya(a, b, c) ((qword)(__spu_mulo_s((vec_short8)(a), (vec_short8)(b)) + (vec_int4)(c)))
#define si_mpyh(a, b) ((qword)(__spu_mulh((vec_short8)(a), (vec_short8)(b))))
#define si_mpys(a, b) ((qword)(__spu_mulo_s((vec_short8)(a), (vec_short8)(b)) >> 16))
#define si_mpyhh(a, b) ((qword)(__spu_mule_s((vec_short8)(a), (vec_short8)(b))))
#define si_mpyhhu(a, b) ((qword)(__spu_mule_u((vec_ushort8)(a), (vec_ushort8)(b))))
#define si_mpyhha(a, b, c) ((qword)(__spu_mule_s((vec_short8)(a), (vec_short8)(b)) + (vec_int4)(c)))
#define si_mpyhhau(a, b, c) ((qword)(__spu_mule_u((vec_ushort8)(a), (vec_ushort8)(b)) + (vec_uint4)(c)))
#define si_clz(a) ((qword)(__spu_cntlz((vec_uint4)(a))))
#define si_cntb(a) ((qword)(__spu_cntb((vec_uchar16)(a))))
#define si_fsmb(a) ((qword)(__spu_maskb(si_to_uint(a))))
#define si_fsmh(a) ((qword)(__spu_maskh(si_to_uint(a))))
#define si_fsm(a) ((qword)(__spu_maskw(si_to_uint(a))))
#define si_fsmbi(n) ((qword)(__spu_maskb(n)))
#define si_gb(a) ((qword)(__spu_gather((vec_uchar16)(a), 4)))
#define si_gbh(a) ((qword)(__spu_gather((vec_uchar16)(a), 2)))
#define si_gbb(a) ((qword)(__spu_gather((vec_uchar16)(a), 1)))
#define si_avgb(a, b) ((qword)(__builtin_ia32_pavgb128((vec_char16)(a), (vec_char16)(b))))
#define si_absdb(a, b) ((qword)(__spu_absd((vec_uchar16)(a), (vec_uchar16)(b))))
#define si_sumb(a, b) ((qword)(__spu_sumb((vec_uchar16)(a), (vec_uchar16)(b))))
#define si_xsbh(a) ((qword)(__spu_extend_b((vec_char16)(a))))
#define si_xshw(a) ((qword)(__spu_extend_h((vec_short8)(a))))
#define si_xswd(a) ((qword)(__spu_extend_w((vec_int4)(a))))
#define si_and(a, b) ((qword)((vec_uint4)(a) & (vec_uint4)(b)))
#define si_andbi(a, n) ((qword)((vec_uchar16)(a) & __si_fill(vec_uchar16, n)))
#define si_andhi(a, n) ((qword)((vec_ushort8)(a) & __si_fill(vec_ushort8, n)))
#define si_andi(a, n) ((qword)((vec_uint4)(a) & __si_fill(vec_uint4, n)))
#define si_or(a, b) ((qword)((vec_uint4)(a) | (vec_uint4)(b)))
#define si_orbi(a, n) ((qword)((vec_uchar16)(a) | __si_fill(vec_uchar16, n)))
#define si_orhi(a, n) ((qword)((vec_ushort8)(a) | __si_fill(vec_ushort8, n)))
#define si_ori(a, n) ((qword)((vec_uint4)(a) | __si_fill(vec_uint4, n)))
#define si_xor(a, b) ((qword)((vec_uint4)(a) ^ (vec_uint4)(b)))
#define si_xorbi(a, n) ((qword)((vec_uchar16)(a) ^ __si_fill(vec_uchar16, n)))
#define si_xorhi(a, n) ((qword)((vec_ushort8)(a) ^ __si_fill(vec_ushort8, n)))
#define si_xori(a, n) ((qword)((vec_uint4)(a) ^ __si_fill(vec_uint4, n)))
#define si_andc(a, b) ((qword)((vec_uint4)(a) & ~(vec_uint4)(b)))
#define si_orc(a, b) ((qword)((vec_uint4)(a) | ~(vec_uint4)(b)))
#define si_nand(a, b) ((qword)(~((vec_uint4)(a) & (vec_uint4)(b))))
#define si_nor(a, b) ((qword)(~((vec_uint4)(a) | (vec_uint4)(b))))
#define si_eqv(a, b) ((qword)(~((vec_uint4)(a) ^ (vec_uint4)(b))))
#define si_orx(a) ((qword)(__spu_orx((vec_uint4)(a))))
#define si_selb(a, b, c) ((qword)(spu_sel((vec_uint4)(a), (vec_uint4)(b), c)))
#define si_shufb(a, b, c) ((qword)(__spu_shuffle((vec_uchar16)(a), (vec_uchar16)(b), (vec_uchar16)(c), 1)))
#define si_shlh(a, b) ((qword)(__spu_left((vec_ushort8)(a), (vec_ushort8)(b))))
#define si_shlhi(a, n) ((qword)(__spu_left((vec_ushort8)(a), __si_fill(vec_ushort8, n))))
#define si_roth(a, b) ((qword)(__spu_rotate((vec_ushort8)(a), (vec_ushort8)(b))))
#define si_rothi(a, n) ((qword)(__spu_rotate((vec_ushort8)(a), __si_fill(vec_ushort8, n))))
#define si_rothm(a, b) ((qword)(__spu_right((vec_ushort8)(a), -(vec_ushort8)(b))))
#define si_rothmi(a, n) ((qword)(__spu_right((vec_ushort8)(a), -__si_fill(vec_ushort8, n))))
#define si_rotmah(a, b) ((qword)(__spu_right_signed((vec_ushort8)(a), -(vec_ushort8)(b))))
#define si_rotmahi(a, n) ((qword)(__spu_right_signed((vec_ushort8)(a), -__si_fill(vec_ushort8, n))))
#define si_shl(a, b) ((qword)(__spu_left((vec_uint4)(a), (vec_uint4)(b))))
#define si_shli(a, n) ((qword)(__spu_left((vec_uint4)(a), __si_fill(vec_uint4, n))))
#define si_rot(a, b) ((qword)(__spu_rotate((vec_uint4)(a), (vec_uint4)(b))))
#define si_roti(a, n) ((qword)(__spu_rotate((vec_uint4)(a), __si_fill(vec_uint4, n))))
#define si_rotm(a, b) ((qword)(__spu_right((vec_uint4)(a), -(vec_uint4)(b))))
#define si_rotmi(a, n) ((qword)(__spu_right((vec_uint4)(a), -__si_fill(vec_uint4, n))))
#define si_rotma(a, b) ((qword)(__spu_right_signed((vec_uint4)(a), -(vec_uint4)(b))))
#define si_rotmai(a, n) ((qword)(__spu_right_signed((vec_uint4)(a), -__si_fill(vec_uint4, n))))
#define si_shlqby(a, b) ((qword)(__spu_left_bytes((vec_uchar16)(a), si_to_int(b), 1)))
#define si_shlqbyi(a, n) ((qword)(__spu_left_bytes((vec_uchar16)(a), (n), 1)))
#define si_shlqbybi(a, b) ((qword)(__spu_left_bytes((vec_uchar16)(a), (si_to_int(b) >> 3), 1)))
#define si_shlqbi(a, b) ((qword)(__spu_left_bits((vec_uchar16)(a), si_to_int(b), 4)))
#define si_shlqbii(a, n) ((qword)(__spu_left_bits((vec_uchar16)(a), (n), 4)))
#define si_rotqby(a, b) ((qword)(__spu_rotate_bytes((vec_uchar16)(a), si_to_int(b), 1)))
#define si_rotqbyi(a, n) ((qword)(__spu_rotate_bytes((vec_uchar16)(a), (n), 1)))
#define si_rotqbybi(a, b) ((qword)(__spu_rotate_bytes((vec_uchar16)(a), (si_to_int(b) >> 3), 1)))
#define si_rotqbi(a, b) ((qword)(__spu_rotate_bits((vec_uchar16)(a), si_to_int(b), 4)))
#define si_rotqbii(a, n) ((qword)(__spu_rotate_bits((vec_uchar16)(a), (n), 4)))
#define si_rotqmby(a, b) ((qword)(__spu_right_bytes((vec_uchar16)(a), -si_to_int(b), 1)))
#define si_rotqmbyi(a, n) ((qword)(__spu_right_bytes((vec_uchar16)(a), -(n), 1)))
#define si_rotqmbybi(a, b) ((qword)(__spu_right_bytes((vec_uchar16)(a), -(si_to_int(b) >> 3), 1)))
#define si_rotqmbi(a, b) ((qword)(__spu_right_bits((vec_uchar16)(a), -si_to_int(b), 4)))
#define si_rotqmbii(a, n) ((qword)(__spu_right_bits((vec_uchar16)(a), -(n), 4)))
#define si_ceqb(a, b) ((qword)((vec_char16)(a) == (vec_char16)(b)))
#define si_ceqbi(a, n) ((qword)((vec_char16)(a) == __si_fill(vec_char16, n)))
#define si_ceqh(a, b) ((qword)((vec_short8)(a) == (vec_short8)(b)))
#define si_ceqhi(a, n) ((qword)((vec_short8)(a) == __si_fill(vec_short8, n)))
#define si_ceq(a, b) ((qword)((vec_int4)(a) == (vec_int4)(b)))
#define si_ceqi(a, n) ((qword)((vec_int4)(a) == __si_fill(vec_int4, n)))
#define si_cgtb(a, b) ((qword)((vec_char16)(a) > (vec_char16)(b)))
#define si_cgtbi(a, n) ((qword)((vec_char16)(a) > __si_fill(vec_char16, n)))
#define si_cgth(a, b) ((qword)((vec_short8)(a) > (vec_short8)(b)))
#define si_cgthi(a, n) ((qword)((vec_short8)(a) > __si_fill(vec_short8, n)))
#define si_cgt(a, b) ((qword)((vec_int4)(a) > (vec_int4)(b)))
#define si_cgti(a, n) ((qword)((vec_int4)(a) > __si_fill(vec_int4, n)))
#define si_clgtb(a, b) ((qword)((vec_uchar16)(a) > (vec_uchar16)(b)))
#define si_clgtbi(a, n) ((qword)((vec_uchar16)(a) > __si_fill(vec_uchar16, n)))
#define si_clgth(a, b) ((qword)((vec_ushort8)(a) > (vec_ushort8)(b)))
#define si_clgthi(a, n) ((qword)((vec_ushort8)(a) > __si_fill(vec_ushort8, n)))
#define si_clgt(a, b) ((qword)((vec_uint4)(a) > (vec_uint4)(b)))
#define si_clgti(a, n) ((qword)((vec_uint4)(a) > __si_fill(vec_uint4, n)))
#define si_heq(a, b) spu_hcmpeq(si_to_int(a), si_to_int(b))
#define si_heqi(a, n) spu_hcmpeq(si_to_int(a), (__typeof__(si_to_int(a)))(n))
#define si_hgt(a, b) spu_hcmpgt(si_to_int(a), si_to_int(b))
#define si_hgti(a, n) spu_hcmpgt(si_to_int(a), (__typeof__(si_to_int(a)))(n))
#define si_hlgt(a, b) spu_hcmpgt(si_to_uint(a), si_to_uint(b))
#define si_hlgti(a, n) spu_hcmpgt(si_to_uint(a), (__typeof__(si_to_uint(a)))(n))
#define si_fa(a, b) ((qword)((vec_float4)(a) + (vec_float4)(b)))
#define si_fs(a, b) ((qword)((vec_float4)(a) - (vec_float4)(b)))
#define si_fm(a, b) ((qword)((vec_float4)(a) * (vec_float4)(b)))
#define si_fma(a, b, c) ((qword)((vec_float4)(a) * (vec_float4)(b) + (vec_float4)(c)))
#define si_fms(a, b, c) ((qword)((vec_float4)(a) * (vec_float4)(b) - (vec_float4)(c)))
#define si_fnms(a, b, c) ((qword)((vec_float4)(c) - (vec_float4)(a) * (vec_float4)(b)))
#define si_fceq(a, b) ((qword)((vec_float4)(a) == (vec_float4)(b)))
#define si_fcgt(a, b) ((qword)((vec_float4)(a) > (vec_float4)(b)))
#define si_fcmeq(a, b) ((qword)(__spu_abs((vec_float4)(a)) == __spu_abs((vec_float4)(b))))
#define si_fcmgt(a, b) ((qword)(__spu_abs((vec_float4)(a)) > __spu_abs((vec_float4)(b))))
#define si_dfa(a, b) ((qword)((vec_double2)(a) + (vec_double2)(b)))
#define si_dfs(a, b) ((qword)((vec_double2)(a) - (vec_double2)(b)))
#define si_dfm(a, b) ((qword)((vec_double2)(a) * (vec_double2)(b)))
#define si_dfma(a, b, c) ((qword)((vec_double2)(a) * (vec_double2)(b) + (vec_double2)(c)))
#define si_dfms(a, b, c) ((qword)((vec_double2)(a) * (vec_double2)(b) - (vec_double2)(c)))
#define si_dfnms(a, b, c) ((qword)((vec_double2)(c) - (vec_double2)(a) * (vec_double2)(b)))
#define si_dfceq(a, b) ((qword)((vec_double2)(a) == (vec_double2)(b)))
#define si_dfcgt(a, b) ((qword)((vec_double2)(a) > (vec_double2)(b)))
#define si_dfcmeq(a, b) ((qword)(__spu_abs((vec_double2)(a)) == __spu_abs((vec_double2)(b))))
#define si_dfcmgt(a, b) ((qword)(__spu_abs((vec_double2)(a)) > __spu_abs((vec_double2)(b))))
#define si_dfnma(a, b, c) ((qword)(-((vec_double2)(a) * (vec_double2)(b) + (vec_double2)(c))))
#define si_dftsv(a, n) ((qword)(__spu_testsv((vec_double2)(a), n)))
#define si_frest(a) ((qword)(1.0f / (vec_float4)(a)))
#define si_frsqest(a) ((qword)(__spu_rsqrte((vec_float4)(a))))
#define si_fi(a, b) ((qword)(b))
#define si_csflt(a, n) ((qword)(__spu_convtf_s((vec_int4)(a), n)))
#define si_cuflt(a, n) ((qword)(__spu_convtf_u((vec_uint4)(a), n)))
#define si_cflts(a, n) ((qword)(__spu_convts((vec_float4)(a), n)))
#define si_cfltu(a, n) ((qword)(__spu_convtu((vec_float4)(a), n)))
#define si_frds(a) ((qword)(__spu_roundtf((vec_double2)(a))))
#define si_fesd(a) ((qword)(__spu_extend_f((vec_float4)(a))))
#define si_fscrrd() ((qword){0})
#define si_fscrwr(a) ((void)(a))
#define si_il(n) ((qword)(__si_fill(vec_int4, (short)(n))))
#define si_ilh(n) ((qword)(__si_fill(vec_ushort8, n)))
#define si_ilhu(n) ((qword)(__si_fill(vec_uint4, (unsigned int)(n) << 16)))
#define si_ila(n) ((qword)(__si_fill(vec_uint4, n)))
#define si_iohl(a, n) ((qword)((vec_uint4)(a) | ((unsigned int)(n) & 0xffff)))
#define si_cbd(a, n) __si_insertion(si_to_uint(a) + (n), 1)
#define si_cbx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 1)
#define si_chd(a, n) __si_insertion(si_to_uint(a) + (n), 2)
#define si_chx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 2)
#define si_cwd(a, n) __si_insertion(si_to_uint(a) + (n), 4)
#define si_cwx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 4)
#define si_cdd(a, n) __si_insertion(si_to_uint(a) + (n), 8)
#define si_cdx(a, b) __si_insertion(si_to_uint(a) + si_to_uint(b), 8)
#define si_lqd(a, n) (*(qword *)((si_to_uint(a) + (n)) & ~15u))
#define si_lqx(a, b) (*(qword *)((si_to_uint(a) + si_to_uint(b)) & ~15u))
#define si_lqa(n) (*(qword *)((unsigned int)(n) & ~15u))
#define si_lqr(n) si_lqa(n)
#define si_stqd(x, a, n) ((void)(*(qword *)((si_to_uint(a) + (n)) & ~15u) = (x)))
#define si_stqx(x, a, b) ((void)(*(qword *)((si_to_uint(a) + si_to_uint(b)) & ~15u) = (x)))
#define si_stqa(x, n) ((void)(*(qword *)((unsigned int)(n) & ~15u) = (x)))
#define si_stqr(x, n) si_stqa(x, n)
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
#define si_bisled(function) ((void)0)
#define si_bisledd(function) ((void)0)
#define si_bislede(function) ((void)0)

#endif

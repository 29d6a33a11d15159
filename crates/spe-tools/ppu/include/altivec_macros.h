/* AltiVec's operations, as macros of a second preprocessing. */
#ifndef ALTIVEC_MACROS_H
#define ALTIVEC_MACROS_H

#include "../common/sidecore_vector_macros.h"

#define __vec_same(a, x) ((__typeof__(a))(x))
#define __vec_binary(a, b, operation) ({ __auto_type __a = (a); __auto_type __b = (b); \
	__a operation __vec_same(__a, __b); })
#define __vec_logic(a, b, expression) ({ __auto_type __s = (a); __auto_type __t = (b); \
	vec_uint4 __a = (vec_uint4)__s, __b = (vec_uint4)__t; (__typeof__(__s))(expression); })
#define __vec_compare(a, b, operation) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__spu_mask_of(__a))(__a operation __vec_same(__a, __b)); })
#define __vec_by_type(f, a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__typeof__(__a))__spu_choose(sizeof(__a[0]) == 1, \
		__spu_choose(__spu_signed(__a), f##sb((vec_char16)__a, (vec_char16)__b), \
			f##ub((vec_uchar16)__a, (vec_uchar16)__b)), \
	__spu_choose(sizeof(__a[0]) == 2, \
		__spu_choose(__spu_signed(__a), f##sh((vec_short8)__a, (vec_short8)__b), \
			f##uh((vec_ushort8)__a, (vec_ushort8)__b)), \
		__spu_choose(__spu_signed(__a), f##sw((vec_int4)__a, (vec_int4)__b), \
			f##uw((vec_uint4)__a, (vec_uint4)__b)))); })

/* Loads and stores: the last four bits of an address are ignored. */
#define __vec_at(n, p) ((__UINTPTR_TYPE__)(p) + (__INTPTR_TYPE__)(n))
#ifdef __cplusplus
#define vec_ld(n, p) (__vec_ld((n), (p)))
#else
#define vec_ld(n, p) ({ __auto_type __p = (p); __auto_type __e = *__p; \
	typedef __typeof__(__builtin_choose_expr(sizeof(__e) == 16, 0, __e)) __vec_e \
		__attribute__((vector_size(16))); \
	__typeof__(__builtin_choose_expr(sizeof(__e) == 16, __e, (__vec_e){0})) __r; \
	__builtin_memcpy(&__r, (const void *)(__vec_at((n), __p) & ~(__UINTPTR_TYPE__)15), 16); __r; })
#endif
#define vec_ldl(n, p) vec_ld(n, p)
#define vec_lde(n, p) vec_ld(n, p)
#define vec_st(a, n, p) ({ __auto_type __a = (a); \
	__builtin_memcpy((void *)(__vec_at((n), (p)) & ~(__UINTPTR_TYPE__)15), &__a, 16); })
#define vec_stl(a, n, p) vec_st(a, n, p)
#define vec_ste(a, n, p) ({ __auto_type __a = (a); __UINTPTR_TYPE__ __q = \
	__vec_at((n), (p)) & -(__UINTPTR_TYPE__)sizeof(__a[0]); \
	__builtin_memcpy((void *)__q, (char *)&__a + (__q & 15), sizeof(__a[0])); })
#define vec_lvsl(n, p) __vec_lvsl((const void *)__vec_at((n), (p)), sizeof((p)[0]))
#define vec_lvsr(n, p) __vec_lvsr((const void *)__vec_at((n), (p)), sizeof((p)[0]))

/* The Cell's own, for data that is not aligned. */
#define __vec_part(f, n, p) ((__typeof__(vec_ld(0, (p))))f((const void *)__vec_at((n), (p))))
#define vec_lvlx(n, p) __vec_part(__vec_lvlx, n, p)
#define vec_lvlxl(n, p) vec_lvlx(n, p)
#define vec_lvrx(n, p) __vec_part(__vec_lvrx, n, p)
#define vec_lvrxl(n, p) vec_lvrx(n, p)
#define vec_stvlx(a, n, p) __vec_stvlx((vec_uchar16)(a), (void *)__vec_at((n), (p)))
#define vec_stvlxl(a, n, p) vec_stvlx(a, n, p)
#define vec_stvrx(a, n, p) __vec_stvrx((vec_uchar16)(a), (void *)__vec_at((n), (p)))
#define vec_stvrxl(a, n, p) vec_stvrx(a, n, p)

/* Arithmetic. */
#define vec_add(a, b) __vec_binary(a, b, +)
#define vec_sub(a, b) __vec_binary(a, b, -)
#define vec_adds(a, b) __vec_by_type(__vec_adds_, a, b)
#define vec_subs(a, b) __vec_by_type(__vec_subs_, a, b)
#define vec_addc(a, b) __spu_genc((vec_uint4)(a), (vec_uint4)(b))
#define vec_subc(a, b) __spu_genb((vec_uint4)(a), (vec_uint4)(b))
#define vec_madd(a, b, c) ({ __auto_type __a = (a); __a * (__typeof__(__a))(b) + (__typeof__(__a))(c); })
#define vec_nmsub(a, b, c) ({ __auto_type __a = (a); (__typeof__(__a))(c) - __a * (__typeof__(__a))(b); })
#define vec_mladd(a, b, c) vec_madd(a, b, c)
#define vec_mul(a, b) __vec_binary(a, b, *)
#define vec_div(a, b) __vec_binary(a, b, /)
#define vec_madds(a, b, c) __vec_adds_sh(__vec_mulhs((vec_short8)(a), (vec_short8)(b)), (vec_short8)(c))
#define vec_mradds(a, b, c) __vec_adds_sh(__vec_mulhrs((vec_short8)(a), (vec_short8)(b)), (vec_short8)(c))
#define __vec_mul_at(a, b, n) ({ __auto_type __a = (a); __auto_type __b = (b); \
	__spu_choose(sizeof(__a[0]) == 1, \
		__spu_choose(__spu_signed(__a), __vec_mul_sb((vec_char16)__a, (vec_char16)__b, n), \
			__vec_mul_ub((vec_uchar16)__a, (vec_uchar16)__b, n)), \
		__spu_choose(__spu_signed(__a), __vec_mul_sh((vec_short8)__a, (vec_short8)__b, n), \
			__vec_mul_uh((vec_ushort8)__a, (vec_ushort8)__b, n))); })
#define vec_mule(a, b) __vec_mul_at(a, b, 0)
#define vec_mulo(a, b) __vec_mul_at(a, b, 1)
#define vec_msum(a, b, c) ({ __auto_type __a = (a); __auto_type __b = (b); __auto_type __c = (c); \
	(__typeof__(__c))__spu_choose(sizeof(__a[0]) == 1, \
		__spu_choose(__spu_signed(__a), \
			__vec_msum_sb((vec_char16)__a, (vec_uchar16)__b, (vec_int4)__c), \
			__vec_msum_ub((vec_uchar16)__a, (vec_uchar16)__b, (vec_uint4)__c)), \
		__spu_choose(__spu_signed(__a), \
			__vec_msum_sh((vec_short8)__a, (vec_short8)__b, (vec_int4)__c), \
			__vec_msum_uh((vec_ushort8)__a, (vec_ushort8)__b, (vec_uint4)__c))); })
#define vec_msums(a, b, c) ({ __auto_type __a = (a); __auto_type __b = (b); __auto_type __c = (c); \
	(__typeof__(__c))__spu_choose(__spu_signed(__a), \
		__vec_msums_sh((vec_short8)__a, (vec_short8)__b, (vec_int4)__c), \
		__vec_msums_uh((vec_ushort8)__a, (vec_ushort8)__b, (vec_uint4)__c)); })
#define vec_packpx(a, b) __vec_packpx((vec_uint4)(a), (vec_uint4)(b))
#define vec_sum4s(a, b) ({ __auto_type __f = (a); __auto_type __g = (b); __typeof__(__f) __one = __f; \
	for (unsigned int __i = 0; __i < 16 / sizeof(__one[0]); __i++) __one[__i] = 1; \
	vec_msum(__f, __one, __g); })
#define vec_sum2s(a, b) __vec_sum2s((vec_int4)(a), (vec_int4)(b))
#define vec_sums(a, b) __vec_sums((vec_int4)(a), (vec_int4)(b))
#define __vec_pick(a, b, operation) ({ __auto_type __a = (a); __auto_type __b0 = (b); \
	__typeof__(__a) __b = (__typeof__(__a))__b0; \
	vec_uint4 __m = (vec_uint4)(__a operation __b); \
	(__typeof__(__a))(((vec_uint4)__a & __m) | ((vec_uint4)__b & ~__m)); })
#define vec_max(a, b) __vec_pick(a, b, >)
#define vec_min(a, b) __vec_pick(a, b, <)
#define vec_abs(a) ({ __auto_type __x = (a); __auto_type __y = -__x; __spu_choose(__spu_floats(__x), \
	(__typeof__(__x))((vec_uint4)__x & 0x7fffffff), (__typeof__(__x))vec_max(__x, __y)); })
#define vec_abss(a) ({ __auto_type __x = (a); __auto_type __y = vec_subs(__x - __x, __x); \
	vec_max(__x, __y); })
#define vec_avg(a, b) ({ __auto_type __a = (a); __typeof__(__a) __b = (__typeof__(__a))(b); \
	(__a >> 1) + (__b >> 1) + ((__a | __b) & 1); })
#define vec_re(a) (1.0f / (vec_float4)(a))
#define vec_rsqrte(a) (1.0f / __builtin_ia32_sqrtps((vec_float4)(a)))
#define vec_sqrt(a) __builtin_ia32_sqrtps((vec_float4)(a))
#define vec_expte(a) __vec_expte((vec_float4)(a))
#define vec_loge(a) __vec_loge((vec_float4)(a))
#define vec_ceil(a) __vec_ceil((vec_float4)(a))
#define vec_floor(a) __vec_floor((vec_float4)(a))
#define vec_round(a) __vec_round((vec_float4)(a))
#define vec_trunc(a) __vec_trunc((vec_float4)(a))
#define vec_ctf(a, n) ({ __auto_type __a = (a); __spu_choose(__spu_signed(__a), \
	__spu_convtf_s((vec_int4)__a, (n)), __spu_convtf_u((vec_uint4)__a, (n))); })
#define vec_cts(a, n) __spu_convts((vec_float4)(a), (n))
#define vec_ctu(a, n) __spu_convtu((vec_float4)(a), (n))

/* Logic, choice, comparison. */
#define vec_and(a, b) __vec_logic(a, b, __a & __b)
#define vec_andc(a, b) __vec_logic(a, b, __a & ~__b)
#define vec_or(a, b) __vec_logic(a, b, __a | __b)
#define vec_nor(a, b) __vec_logic(a, b, ~(__a | __b))
#define vec_xor(a, b) __vec_logic(a, b, __a ^ __b)
#define vec_sel(a, b, mask) ({ __auto_type __a = (a); __auto_type __b = (b); \
	vec_uint4 __m = (vec_uint4)(mask); \
	(__typeof__(__a))(((vec_uint4)__a & ~__m) | ((vec_uint4)__b & __m)); })
#define vec_cmpeq(a, b) __vec_compare(a, b, ==)
#define vec_cmpgt(a, b) __vec_compare(a, b, >)
#define vec_cmpge(a, b) __vec_compare(a, b, >=)
#define vec_cmplt(a, b) __vec_compare(a, b, <)
#define vec_cmple(a, b) __vec_compare(a, b, <=)
#define vec_cmpb(a, b) __vec_cmpb((vec_float4)(a), (vec_float4)(b))
#define __vec_all(m) ({ vec_ullong2 __all = (vec_ullong2)(m); (__all[0] & __all[1]) == ~0ULL; })
#define __vec_any(m) ({ vec_ullong2 __any = (vec_ullong2)(m); (__any[0] | __any[1]) != 0; })
#define vec_all_eq(a, b) __vec_all(vec_cmpeq(a, b))
#define vec_all_ne(a, b) (!__vec_any(vec_cmpeq(a, b)))
#define vec_all_gt(a, b) __vec_all(vec_cmpgt(a, b))
#define vec_all_ge(a, b) __vec_all(vec_cmpge(a, b))
#define vec_all_lt(a, b) __vec_all(vec_cmplt(a, b))
#define vec_all_le(a, b) __vec_all(vec_cmple(a, b))
#define vec_all_nan(a) ({ __auto_type __n = (a); __vec_all(__n != __n); })
#define vec_all_numeric(a) ({ __auto_type __n = (a); __vec_all(__n == __n); })
#define vec_all_nge(a, b) (!__vec_any(vec_cmpge(a, b)))
#define vec_all_ngt(a, b) (!__vec_any(vec_cmpgt(a, b)))
#define vec_all_nle(a, b) (!__vec_any(vec_cmple(a, b)))
#define vec_all_nlt(a, b) (!__vec_any(vec_cmplt(a, b)))
#define vec_all_in(a, b) (!__vec_any(vec_cmpb(a, b)))
#define vec_any_eq(a, b) __vec_any(vec_cmpeq(a, b))
#define vec_any_ne(a, b) (!__vec_all(vec_cmpeq(a, b)))
#define vec_any_gt(a, b) __vec_any(vec_cmpgt(a, b))
#define vec_any_ge(a, b) __vec_any(vec_cmpge(a, b))
#define vec_any_lt(a, b) __vec_any(vec_cmplt(a, b))
#define vec_any_le(a, b) __vec_any(vec_cmple(a, b))
#define vec_any_nan(a) ({ __auto_type __n = (a); __vec_any(__n != __n); })
#define vec_any_numeric(a) ({ __auto_type __n = (a); __vec_any(__n == __n); })
#define vec_any_nge(a, b) (!__vec_all(vec_cmpge(a, b)))
#define vec_any_ngt(a, b) (!__vec_all(vec_cmpgt(a, b)))
#define vec_any_nle(a, b) (!__vec_all(vec_cmple(a, b)))
#define vec_any_nlt(a, b) (!__vec_all(vec_cmplt(a, b)))
#define vec_any_out(a, b) __vec_any(vec_cmpb(a, b))

/* Shifts: counts are taken modulo the element's bits. */
#define __vec_shift(a, n, T, operation) ({ __auto_type __a = (a); __auto_type __k = (n); \
	(__typeof__(__a))((T)__a operation ((T)__k & (8 * sizeof(__a[0]) - 1))); })
#define vec_sl(a, n) __vec_shift(a, n, __spu_mask_of(__a), <<)
#define vec_sr(a, n) __vec_shift(a, n, __spu_mask_of(__a), >>)
#define vec_sra(a, n) ({ __auto_type __a = (a); __auto_type __k = (n); (__typeof__(__a))__spu_right_signed( \
	(__spu_mask_of(__a))__a, (__spu_mask_of(__a))__k & (8 * sizeof(__a[0]) - 1)); })
#define vec_rl(a, n) ({ __auto_type __a = (a); __auto_type __k = (n); (__typeof__(__a))__spu_rotate( \
	(__spu_mask_of(__a))__a, (__spu_mask_of(__a))__k); })
#define vec_sll(a, n) ({ __auto_type __a = (a); (__typeof__(__a))__spu_left_bits((vec_uchar16)__a, \
	((vec_uchar16)(n))[15], sizeof(__a[0])); })
#define vec_srl(a, n) ({ __auto_type __a = (a); (__typeof__(__a))__spu_right_bits((vec_uchar16)__a, \
	((vec_uchar16)(n))[15], sizeof(__a[0])); })
#define vec_slo(a, n) ({ __auto_type __a = (a); (__typeof__(__a))__spu_left_bytes((vec_uchar16)__a, \
	((vec_uchar16)(n))[15] >> 3 & 15, sizeof(__a[0])); })
#define vec_sro(a, n) ({ __auto_type __a = (a); (__typeof__(__a))__spu_right_bytes((vec_uchar16)__a, \
	((vec_uchar16)(n))[15] >> 3 & 15, sizeof(__a[0])); })
#define vec_sld(a, b, n) ({ __auto_type __a = (a); (__typeof__(__a))__vec_sld((vec_uchar16)__a, \
	(vec_uchar16)(b), (n), sizeof(__a[0])); })

/* Places. */
#define vec_perm(a, b, pattern) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__typeof__(__a))__vec_perm((vec_uchar16)__a, (vec_uchar16)__b, (vec_uchar16)(pattern), \
	sizeof(__a[0])); })
#define vec_splat(a, n) ({ __auto_type __a = (a); __spu_like(__typeof__(__a), \
	__a[(n) & (16 / sizeof(__a[0]) - 1)]); })
#define vec_splat_s8(n) __spu_like(vec_char16, (signed char)(n))
#define vec_splat_u8(n) __spu_like(vec_uchar16, (unsigned char)(n))
#define vec_splat_s16(n) __spu_like(vec_short8, (short)(n))
#define vec_splat_u16(n) __spu_like(vec_ushort8, (unsigned short)(n))
#define vec_splat_s32(n) __spu_like(vec_int4, (int)(n))
#define vec_splat_u32(n) __spu_like(vec_uint4, (unsigned int)(n))
#define vec_splats(x) __spu_splat_any(x)
#define vec_extract(a, n) ({ __auto_type __a = (a); __spu_extract(__a, (n)); })
#define vec_insert(x, a, n) ({ __auto_type __x = (x); __auto_type __a = (a); \
	__a[(n) & (16 / sizeof(__a[0]) - 1)] = __x; __a; })
#define vec_promote(x, n) __spu_splat_any(x)
#define __vec_merged(a, b, n) ({ __auto_type __a = (a); __auto_type __b = (b); \
	(__typeof__(__a))__vec_merge((vec_uchar16)__a, (vec_uchar16)__b, (n), sizeof(__a[0])); })
#define vec_mergeh(a, b) __vec_merged(a, b, 0)
#define vec_mergel(a, b) __vec_merged(a, b, 8)
#define vec_pack(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); __spu_choose(sizeof(__a[0]) == 2, \
	__spu_choose(__spu_signed(__a), (vec_char16)__vec_pack_h((vec_ushort8)__a, (vec_ushort8)__b), \
		__vec_pack_h((vec_ushort8)__a, (vec_ushort8)__b)), \
	__spu_choose(__spu_signed(__a), (vec_short8)__vec_pack_w((vec_uint4)__a, (vec_uint4)__b), \
		__vec_pack_w((vec_uint4)__a, (vec_uint4)__b))); })
#define vec_packs(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); __spu_choose(sizeof(__a[0]) == 2, \
	__spu_choose(__spu_signed(__a), __vec_packs_sh((vec_short8)__a, (vec_short8)__b), \
		__vec_packs_uh((vec_ushort8)__a, (vec_ushort8)__b)), \
	__spu_choose(__spu_signed(__a), __vec_packs_sw((vec_int4)__a, (vec_int4)__b), \
		__vec_packs_uw((vec_uint4)__a, (vec_uint4)__b))); })
#define vec_packsu(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); __spu_choose(sizeof(__a[0]) == 2, \
	__spu_choose(__spu_signed(__a), __vec_packsu_sh((vec_short8)__a, (vec_short8)__b), \
		__vec_packs_uh((vec_ushort8)__a, (vec_ushort8)__b)), \
	__spu_choose(__spu_signed(__a), __vec_packsu_sw((vec_int4)__a, (vec_int4)__b), \
		__vec_packs_uw((vec_uint4)__a, (vec_uint4)__b))); })
#define __vec_unpacked(a, half) ({ __auto_type __a = (a); __spu_choose(sizeof(__a[0]) == 1, \
	__vec_unpack_b((vec_char16)__a, (half) * 8), __vec_unpack_h((vec_short8)__a, (half) * 4)); })
#define vec_unpackh(a) __vec_unpacked(a, 0)
#define vec_unpackl(a) __vec_unpacked(a, 1)

/* Hints and the status register. */
#define vec_dss(n) ((void)0)
#define vec_dssall() ((void)0)
#define vec_dst(p, control, n) __builtin_prefetch((const void *)(p))
#define vec_dstst(p, control, n) __builtin_prefetch((const void *)(p), 1)
#define vec_dstt(p, control, n) __builtin_prefetch((const void *)(p))
#define vec_dststt(p, control, n) __builtin_prefetch((const void *)(p), 1)
#define vec_mfvscr() ((vec_ushort8){0})
#define vec_mtvscr(a) ((void)(a))

#endif

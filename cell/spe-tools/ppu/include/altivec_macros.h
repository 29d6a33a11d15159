/* AltiVec's operations, as macros of a second preprocessing. */
#ifndef ALTIVEC_MACROS_H
#define ALTIVEC_MACROS_H

#include "../common/sidecore_vector_macros.h"

/* The type of both: truth values, which have no sign here, take that of the other operand. */
#define __vec_common(a, b) __typeof__(__spu_choose(!__spu_floats(a) && \
	(__spu_floats(b) || __spu_integer_of_sign(b)), (b), (a)))
#define __vec_binary(a, b, operation) ({ __auto_type __s = (a); __auto_type __t = (b); \
	typedef __vec_common(__s, __t) __vec_b; (__vec_b)__s operation (__vec_b)__t; })
#define __vec_logic(a, b, expression) ({ __auto_type __s = (a); __auto_type __t = (b); \
	vec_uint4 __a = (vec_uint4)__s, __b = (vec_uint4)__t; (__vec_common(__s, __t))(expression); })
#define __vec_compare(a, b, operation) ({ __auto_type __s = (a); __auto_type __t = (b); \
	typedef __vec_common(__s, __t) __vec_b; (__spu_mask_of(__s))((__vec_b)__s operation (__vec_b)__t); })
#define __vec_by_type(f, a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	typedef __vec_common(__a, __b) __vec_t; __vec_t __s = {0}; \
	(__vec_t)__spu_choose(sizeof(__a[0]) == 1, \
		__spu_choose(__spu_signed(__s), f##sb((vec_char16)__a, (vec_char16)__b), \
			f##ub((vec_uchar16)__a, (vec_uchar16)__b)), \
	__spu_choose(sizeof(__a[0]) == 2, \
		__spu_choose(__spu_signed(__s), f##sh((vec_short8)__a, (vec_short8)__b), \
			f##uh((vec_ushort8)__a, (vec_ushort8)__b)), \
		__spu_choose(__spu_signed(__s), f##sw((vec_int4)__a, (vec_int4)__b), \
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
#define __vec_wide(p) sizeof(vec_ld(0, (p))[0])
#define __vec_part(f, n, p) \
	((__typeof__(vec_ld(0, (p))))f((const void *)__vec_at((n), (p)), __vec_wide(p)))
#define vec_lvlx(n, p) __vec_part(__vec_lvlx, n, p)
#define vec_lvlxl(n, p) vec_lvlx(n, p)
#define vec_lvrx(n, p) __vec_part(__vec_lvrx, n, p)
#define vec_lvrxl(n, p) vec_lvrx(n, p)
#define vec_stvlx(a, n, p) __vec_stvlx((vec_uchar16)(a), (void *)__vec_at((n), (p)), sizeof((a)[0]), __vec_wide(p))
#define vec_stvlxl(a, n, p) vec_stvlx(a, n, p)
#define vec_stvrx(a, n, p) __vec_stvrx((vec_uchar16)(a), (void *)__vec_at((n), (p)), sizeof((a)[0]), __vec_wide(p))
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
#define vec_madds(a, b, c) __vec_madds((vec_short8)(a), (vec_short8)(b), (vec_short8)(c), 0)
#define vec_mradds(a, b, c) __vec_madds((vec_short8)(a), (vec_short8)(b), (vec_short8)(c), 0x4000)
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
#define vec_sum4s(a, b) ({ __auto_type __a = (a); __auto_type __b = (b); \
	__spu_choose(sizeof(__a[0]) == 1, \
		__spu_choose(__spu_signed(__a), __vec_sum4s_sb((vec_char16)__a, (vec_int4)__b), \
			__vec_sum4s_ub((vec_uchar16)__a, (vec_uint4)__b)), \
		__vec_sum4s_sh((vec_short8)__a, (vec_int4)__b)); })
#define vec_sum2s(a, b) __vec_sum2s((vec_int4)(a), (vec_int4)(b))
#define vec_sums(a, b) __vec_sums((vec_int4)(a), (vec_int4)(b))
#define __vec_pick(a, b, operation) ({ __auto_type __a0 = (a); __auto_type __b0 = (b); \
	typedef __vec_common(__a0, __b0) __vec_p; __vec_p __a = (__vec_p)__a0, __b = (__vec_p)__b0; \
	vec_uint4 __m = (vec_uint4)(__a operation __b); \
	(__vec_p)(((vec_uint4)__a & __m) | ((vec_uint4)__b & ~__m)); })
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
#define vec_expte(a) __vec_expte((vec_float4)(a))
#define vec_loge(a) __vec_loge((vec_float4)(a))
#define vec_ceil(a) __vec_ceil((vec_float4)(a))
#define vec_floor(a) __vec_floor((vec_float4)(a))
#define vec_round(a) __vec_round((vec_float4)(a))
#define vec_trunc(a) __vec_trunc((vec_float4)(a))
#define vec_ctf(a, n) ({ __auto_type __a = (a); __spu_choose(__spu_signed(__a), \
	__spu_convtf_s((vec_int4)__a, (n)), __spu_convtf_u((vec_uint4)__a, (n))); })
#define vec_cts(a, n) __vec_cts((vec_float4)(a), (n))
#define vec_ctu(a, n) __vec_ctu((vec_float4)(a), (n))

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

/* Names of the instructions: the operations above, by the types at hand. */
#define vec_vaddubm(a, b) vec_add(a, b)
#define vec_vadduhm(a, b) vec_add(a, b)
#define vec_vadduwm(a, b) vec_add(a, b)
#define vec_vaddfp(a, b) vec_add(a, b)
#define vec_vaddcuw(a, b) vec_addc(a, b)
#define vec_vaddubs(a, b) vec_adds(a, b)
#define vec_vaddsbs(a, b) vec_adds(a, b)
#define vec_vadduhs(a, b) vec_adds(a, b)
#define vec_vaddshs(a, b) vec_adds(a, b)
#define vec_vadduws(a, b) vec_adds(a, b)
#define vec_vaddsws(a, b) vec_adds(a, b)
#define vec_vand(a, b) vec_and(a, b)
#define vec_vandc(a, b) vec_andc(a, b)
#define vec_vavgub(a, b) vec_avg(a, b)
#define vec_vavgsb(a, b) vec_avg(a, b)
#define vec_vavguh(a, b) vec_avg(a, b)
#define vec_vavgsh(a, b) vec_avg(a, b)
#define vec_vavguw(a, b) vec_avg(a, b)
#define vec_vavgsw(a, b) vec_avg(a, b)
#define vec_vrfip(a) vec_ceil(a)
#define vec_vcmpbfp(a, b) vec_cmpb(a, b)
#define vec_vcmpequb(a, b) vec_cmpeq(a, b)
#define vec_vcmpequh(a, b) vec_cmpeq(a, b)
#define vec_vcmpequw(a, b) vec_cmpeq(a, b)
#define vec_vcmpeqfp(a, b) vec_cmpeq(a, b)
#define vec_vcmpgefp(a, b) vec_cmpge(a, b)
#define vec_vcmpgtub(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtsb(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtuh(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtsh(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtuw(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtsw(a, b) vec_cmpgt(a, b)
#define vec_vcmpgtfp(a, b) vec_cmpgt(a, b)
#define vec_vcfux(a, b) vec_ctf(a, b)
#define vec_vcfsx(a, b) vec_ctf(a, b)
#define vec_vctsxs(a, b) vec_cts(a, b)
#define vec_vctuxs(a, b) vec_ctu(a, b)
#define vec_vexptefp(a) vec_expte(a)
#define vec_vrfim(a) vec_floor(a)
#define vec_vlogefp(a) vec_loge(a)
#define vec_vmaddfp(a, b, c) vec_madd(a, b, c)
#define vec_vmhaddshs(a, b, c) vec_madds(a, b, c)
#define vec_vmaxub(a, b) vec_max(a, b)
#define vec_vmaxsb(a, b) vec_max(a, b)
#define vec_vmaxuh(a, b) vec_max(a, b)
#define vec_vmaxsh(a, b) vec_max(a, b)
#define vec_vmaxuw(a, b) vec_max(a, b)
#define vec_vmaxsw(a, b) vec_max(a, b)
#define vec_vmaxfp(a, b) vec_max(a, b)
#define vec_vmrghb(a, b) vec_mergeh(a, b)
#define vec_vmrghh(a, b) vec_mergeh(a, b)
#define vec_vmrghw(a, b) vec_mergeh(a, b)
#define vec_vmrglb(a, b) vec_mergel(a, b)
#define vec_vmrglh(a, b) vec_mergel(a, b)
#define vec_vmrglw(a, b) vec_mergel(a, b)
#define vec_vminub(a, b) vec_min(a, b)
#define vec_vminsb(a, b) vec_min(a, b)
#define vec_vminuh(a, b) vec_min(a, b)
#define vec_vminsh(a, b) vec_min(a, b)
#define vec_vminuw(a, b) vec_min(a, b)
#define vec_vminsw(a, b) vec_min(a, b)
#define vec_vminfp(a, b) vec_min(a, b)
#define vec_vmladduhm(a, b, c) vec_mladd(a, b, c)
#define vec_vmhraddshs(a, b, c) vec_mradds(a, b, c)
#define vec_vmsumubm(a, b, c) vec_msum(a, b, c)
#define vec_vmsummbm(a, b, c) vec_msum(a, b, c)
#define vec_vmsumuhm(a, b, c) vec_msum(a, b, c)
#define vec_vmsumshm(a, b, c) vec_msum(a, b, c)
#define vec_vmsumuhs(a, b, c) vec_msums(a, b, c)
#define vec_vmsumshs(a, b, c) vec_msums(a, b, c)
#define vec_vmuleub(a, b) vec_mule(a, b)
#define vec_vmulesb(a, b) vec_mule(a, b)
#define vec_vmuleuh(a, b) vec_mule(a, b)
#define vec_vmulesh(a, b) vec_mule(a, b)
#define vec_vmuloub(a, b) vec_mulo(a, b)
#define vec_vmulosb(a, b) vec_mulo(a, b)
#define vec_vmulouh(a, b) vec_mulo(a, b)
#define vec_vmulosh(a, b) vec_mulo(a, b)
#define vec_vnmsubfp(a, b, c) vec_nmsub(a, b, c)
#define vec_vnor(a, b) vec_nor(a, b)
#define vec_vor(a, b) vec_or(a, b)
#define vec_vpkuhum(a, b) vec_pack(a, b)
#define vec_vpkuwum(a, b) vec_pack(a, b)
#define vec_vpkpx(a, b) vec_packpx(a, b)
#define vec_vpkuhus(a, b) vec_packs(a, b)
#define vec_vpkshss(a, b) vec_packs(a, b)
#define vec_vpkuwus(a, b) vec_packs(a, b)
#define vec_vpkswss(a, b) vec_packs(a, b)
#define vec_vpkshus(a, b) vec_packsu(a, b)
#define vec_vpkswus(a, b) vec_packsu(a, b)
#define vec_vperm(a, b, c) vec_perm(a, b, c)
#define vec_vrefp(a) vec_re(a)
#define vec_vrlb(a, b) vec_rl(a, b)
#define vec_vrlh(a, b) vec_rl(a, b)
#define vec_vrlw(a, b) vec_rl(a, b)
#define vec_vrfin(a) vec_round(a)
#define vec_vrsqrtefp(a) vec_rsqrte(a)
#define vec_vsel(a, b, c) vec_sel(a, b, c)
#define vec_vslb(a, b) vec_sl(a, b)
#define vec_vslh(a, b) vec_sl(a, b)
#define vec_vslw(a, b) vec_sl(a, b)
#define vec_vsldoi(a, b, c) vec_sld(a, b, c)
#define vec_vsl(a, b) vec_sll(a, b)
#define vec_vslo(a, b) vec_slo(a, b)
#define vec_vspltb(a, b) vec_splat(a, b)
#define vec_vsplth(a, b) vec_splat(a, b)
#define vec_vspltw(a, b) vec_splat(a, b)
#define vec_vspltisb(a) vec_splat_s8(a)
#define vec_vspltish(a) vec_splat_s16(a)
#define vec_vspltisw(a) vec_splat_s32(a)
#define vec_vsrb(a, b) vec_sr(a, b)
#define vec_vsrh(a, b) vec_sr(a, b)
#define vec_vsrw(a, b) vec_sr(a, b)
#define vec_vsrab(a, b) vec_sra(a, b)
#define vec_vsrah(a, b) vec_sra(a, b)
#define vec_vsraw(a, b) vec_sra(a, b)
#define vec_vsr(a, b) vec_srl(a, b)
#define vec_vsro(a, b) vec_sro(a, b)
#define vec_vsububm(a, b) vec_sub(a, b)
#define vec_vsubuhm(a, b) vec_sub(a, b)
#define vec_vsubuwm(a, b) vec_sub(a, b)
#define vec_vsubfp(a, b) vec_sub(a, b)
#define vec_vsubcuw(a, b) vec_subc(a, b)
#define vec_vsububs(a, b) vec_subs(a, b)
#define vec_vsubsbs(a, b) vec_subs(a, b)
#define vec_vsubuhs(a, b) vec_subs(a, b)
#define vec_vsubshs(a, b) vec_subs(a, b)
#define vec_vsubuws(a, b) vec_subs(a, b)
#define vec_vsubsws(a, b) vec_subs(a, b)
#define vec_vsum4ubs(a, b) vec_sum4s(a, b)
#define vec_vsum4sbs(a, b) vec_sum4s(a, b)
#define vec_vsum4shs(a, b) vec_sum4s(a, b)
#define vec_vsum2sws(a, b) vec_sum2s(a, b)
#define vec_vsumsws(a, b) vec_sums(a, b)
#define vec_vrfiz(a) vec_trunc(a)
#define vec_vupkhsb(a) vec_unpackh(a)
#define vec_vupkhsh(a) vec_unpackh(a)
#define vec_vupklsb(a) vec_unpackl(a)
#define vec_vupklsh(a) vec_unpackl(a)
#define vec_vxor(a, b) vec_xor(a, b)
#define vec_lvx(a, b) vec_ld(a, b)
#define vec_lvxl(a, b) vec_ldl(a, b)
#define vec_lvebx(a, b) vec_lde(a, b)
#define vec_lvehx(a, b) vec_lde(a, b)
#define vec_lvewx(a, b) vec_lde(a, b)
#define vec_stvx(a, b, c) vec_st(a, b, c)
#define vec_stvxl(a, b, c) vec_stl(a, b, c)
#define vec_stvebx(a, b, c) vec_ste(a, b, c)
#define vec_stvehx(a, b, c) vec_ste(a, b, c)
#define vec_stvewx(a, b, c) vec_ste(a, b, c)
#define vec_vupkhpx(a) __vec_unpack_pixels((vec_ushort8)(a), 0)
#define vec_vupklpx(a) __vec_unpack_pixels((vec_ushort8)(a), 4)

/* Elements of a type's or value's vector. */
#define vec_step(x) (16 / sizeof((*(__typeof__(x) *)0)[0]))

#endif

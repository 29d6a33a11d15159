/* Building blocks of both sides' vector intrinsics, for the second preprocessing. */
#ifndef SIDECORE_VECTOR_MACROS_H
#define SIDECORE_VECTOR_MACROS_H

#ifdef __cplusplus
#define __auto_type auto
#define __spu_floats(v) ((__spu_element(v))0.5 != (__spu_element(v))0)
#define __spu_integer_of_sign(v) (!__spu_floats(v) && __spu_signed(v))
#define __spu_choose(condition, a, b) (__spu_chooser<(condition)>::of((a), (b)))
#define __spu_like(T, x) (__spu_like_of<T>(x))
#define __spu_splat_any(x) (__spu_splat_of(x))
#define __spu_word(x) ((unsigned int)(x))
#else
#define __spu_floats(v) (__builtin_types_compatible_p(__spu_element(v), float) || \
	__builtin_types_compatible_p(__spu_element(v), double))
#define __spu_integer_of_sign(v) (__builtin_types_compatible_p(__spu_element(v), signed char) || \
	__builtin_types_compatible_p(__spu_element(v), short) || __builtin_types_compatible_p(__spu_element(v), int))
#define __spu_choose(condition, a, b) __builtin_choose_expr((condition), (a), (b))
#define __spu_like(T, x) ({ __auto_type __l = (x); \
	T __w = (T)__builtin_choose_expr(sizeof(__l) == 16, __l, (T){0}); \
	__builtin_choose_expr(sizeof(__l) == 16, __w, __spu_fill(__w, \
		__builtin_choose_expr(sizeof(__l) == 16, 0, __l))); })
/* A zero that is subtracted leaves the sign of a number that is none, as one that is added does not. */
#define __spu_fill(v, x) ((__typeof__((v)[0]))(x) - ((__typeof__(v)){0}))
#define __spu_splat_any(x) ({ __auto_type __s1 = (x); \
	typedef __typeof__(__s1) __spu_v __attribute__((vector_size(16))); \
	__spu_v __v1 = __s1 - (__spu_v){0}; __v1; })
#define __spu_word(x) ({ __auto_type __w1 = (x); (unsigned int)__w1; })
#endif
#define __spu_extract(v, n) ((v)[(n) & (16 / sizeof((v)[0]) - 1)])
#define __spu_element(v) __typeof__((v)[0])
#define __spu_signed(v) ((__spu_element(v))-1 < (__spu_element(v))1)

/* The unsigned type with elements of the same size. */
#define __spu_mask_of(v) __typeof__( \
	__spu_choose(sizeof((v)[0]) == 1, (vec_uchar16){0}, \
	__spu_choose(sizeof((v)[0]) == 2, (vec_ushort8){0}, \
	__spu_choose(sizeof((v)[0]) == 4, (vec_uint4){0}, (vec_ullong2){0}))))
#define __spu_abs(v) ({ __auto_type __v = (v); (__typeof__(__v))__spu_choose(sizeof(__v[0]) == 4, \
	(vec_uint4)__v & 0x7fffffff, (vec_ullong2)__v & 0x7fffffffffffffffULL); })

/* Counts wrap at twice the element's bits; from the element's bits on nothing of it is left. */
#define __spu_bits(v) (8 * sizeof((v)[0]))
#define __spu_rotate(a, n) ({ __auto_type __value = (a); __auto_type __count = (n) & (__spu_bits(__value) - 1); \
	(__value << __count) | (__value >> (-__count & (__spu_bits(__value) - 1))); })
#define __spu_left(a, n) ({ __auto_type __value = (a); __auto_type __count = (n) & (2 * __spu_bits(__value) - 1); \
	(__value << (__count & (__spu_bits(__value) - 1))) & (__typeof__(__value))(__count < __spu_bits(__value)); })
#define __spu_right(a, n) ({ __auto_type __value = (a); __auto_type __count = (n) & (2 * __spu_bits(__value) - 1); \
	(__value >> (__count & (__spu_bits(__value) - 1))) & (__typeof__(__value))(__count < __spu_bits(__value)); })
#define __spu_right_signed(a, n) ({ __auto_type __value = (a); \
	__auto_type __count = (n) & (2 * __spu_bits(__value) - 1); \
	__auto_type __sign = (__typeof__(__value))((__value >> (__spu_bits(__value) - 1)) != 0); \
	__typeof__(__value) __most = (__typeof__(__value))(__count < __spu_bits(__value)); \
	__typeof__(__value) __shift = (__count & __most) | ((__spu_bits(__value) - 1) & ~__most); \
	((__value ^ __sign) >> __shift) ^ __sign; })

#endif

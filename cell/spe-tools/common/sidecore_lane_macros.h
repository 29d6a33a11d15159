/* Casts of vectors that keep an SPU's register, for the second preprocessing.
 *
 * Byte k of a register is byte k ^ (size - 1) here, size being the element's; so a cast between sizes is
 * a permutation of bytes, and where sizes agree it is the compiler's own.
 */
#ifndef SIDECORE_LANE_MACROS_H
#define SIDECORE_LANE_MACROS_H

#define __lane_size(T) sizeof(((T){0})[0])

#ifdef __cplusplus
#define __lane_cast(T, x) (__spe_lane<T>(x))
#define __lane_loaded(T, x) (__spe_lane_loaded<T>(x))
#define __lane_stored(T, x) (__spe_lane_stored<T>(x))
#define __lane_width(E) sizeof(__spe_width(E))
#else
#define __lane_floats(T) (__builtin_types_compatible_p(__typeof__(((T){0})[0]), float) || \
	__builtin_types_compatible_p(__typeof__(((T){0})[0]), double))
#define __lane_turned(T, v) ((T)__spe_turned((__spe_vec_uchar16)(v), \
	(sizeof((v)[0]) - 1) ^ (__lane_size(T) - 1)))
#define __lane_cast(T, x) ({ __auto_type __lane = (x); \
	__builtin_choose_expr(sizeof(__lane[0]) == __lane_size(T), (T)__lane, __lane_turned(T, __lane)); })
/* Bytes in memory that are cast to floats are floats already; so are floats that are stored as bytes. */
#define __lane_loaded(T, x) ({ __auto_type __lane = (x); \
	__builtin_choose_expr(sizeof(__lane[0]) == __lane_size(T) || \
		(sizeof(__lane[0]) < __lane_size(T) && __lane_floats(T)), (T)__lane, __lane_turned(T, __lane)); })
#define __lane_stored(T, x) ({ __auto_type __lane = (x); \
	__builtin_choose_expr(sizeof(__lane[0]) == __lane_size(T) || \
		(sizeof(__lane[0]) > __lane_size(T) && __lane_floats(__typeof__(__lane))), (T)__lane, \
		__lane_turned(T, __lane)); })
/* Bytes of the elements that a pointer points to; 1 where these are no vectors. */
#define __lane_width(E) _Generic(*(E), __spe_vec_short8: 2, __spe_vec_ushort8: 2, __spe_vec_int4: 4, \
	__spe_vec_uint4: 4, __spe_vec_float4: 4, __spe_vec_llong2: 8, __spe_vec_ullong2: 8, \
	__spe_vec_double2: 8, default: 1)
#endif

#ifndef __cplusplus
/* A vector of a union that holds a register from its last byte to its first: read, and written. */
#define __lane_united(v) ({ __typeof__(v) __united = (v); \
	(__typeof__(v))__spe_turned((__spe_vec_uchar16)__united, (sizeof(__united[0]) - 1) ^ 15); })
#define __lane_put(v, x) ({ __auto_type __put = (x); \
	(v) = (__typeof__(v))__spe_turned((__spe_vec_uchar16)__put, (sizeof(__put[0]) - 1) ^ 15); \
	__lane_cast(__typeof__(v), __put); })
#endif

/* A vector that a pointer of another type points to: an object of its own, to be read. */
#ifdef __cplusplus
#define __lane_view(T, p) (static_cast<const T &>(__lane_cast(T, *(p))))
#else
#define __lane_view(T, p) ((T[1]){__lane_cast(T, *(p))})[0]
#endif
/* The quadword that an address lies in; an element of a vector keeps its own. */
#define __lane_at(p) ((__typeof__(p))((__UINTPTR_TYPE__)(p) & ~(__UINTPTR_TYPE__)(sizeof(*(p)) == 16 ? 15 : 0)))
/* The place of number i among numbers of type T that share memory with a vector. */
#define __lane_shared(T, width, i) ((i) ^ ((width) > sizeof(T) ? (width) / sizeof(T) - 1 : 0))
/* Two of them, which are handed on in the order that they have on the Cell. */
#ifdef __cplusplus
#define __lane_words(T, width, array) (array)
#else
#define __lane_words(T, width, array) (__builtin_choose_expr(sizeof(array) == 2 * sizeof(T), \
	((T[2]){(array)[__lane_shared(T, width, 0)], (array)[__lane_shared(T, width, 1)]}), (array)))
#endif
#define __lane_index(T, E, i) __lane_shared(T, __lane_width(E), i)

#endif

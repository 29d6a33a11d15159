/* The SDK's libmisc: memory by alignment, which is given by its logarithm; random numbers, bounds, the
 * least and the greatest of vectors, vectors in memory that is not aligned.
 */
#ifndef SIDECORE_MISC_H
#define SIDECORE_MISC_H
#include <sidecore_begin.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#ifdef __SPU__
extern void *_malloc_align(size_t, unsigned int);
extern void *_calloc_align(size_t, size_t, unsigned int);
extern void *_realloc_align(void *, size_t, unsigned int);
extern void _free_align(void *);
extern int rand(void);
#define __MISC_RAND_MAX 2147483647
#else
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
static __inline__ void *_malloc_align(size_t bytes, unsigned int logarithm)
{
	return memalign((size_t)1 << (logarithm < 4 ? 4 : logarithm), bytes);
}
static __inline__ void *_calloc_align(size_t count, size_t bytes, unsigned int logarithm)
{
	void *memory = bytes && count > (size_t)-1 / bytes ? 0 : _malloc_align(count * bytes, logarithm);
	return memory ? memset(memory, 0, count * bytes) : 0;
}
static __inline__ void *_realloc_align(void *old, size_t bytes, unsigned int logarithm)
{
	void *memory = _malloc_align(bytes, logarithm);
	if (memory && old) {
		size_t had = malloc_usable_size(old);
		memcpy(memory, old, had < bytes ? had : bytes);
		free(old);
	}
	return memory;
}
static __inline__ void _free_align(void *memory) { free(memory); }
#define __MISC_RAND_MAX RAND_MAX
#endif

#ifdef __cplusplus
}
#endif

#include <sidecore_vector_names.h>

#define __MISC_INLINE static __inline__ __attribute__((unused))

/* Random numbers; the vectors' share nothing between their elements. */
__MISC_INLINE float _rand_0_to_1(void) { return (float)rand() / (float)__MISC_RAND_MAX; }
__MISC_INLINE float _rand_minus1_to_1(void) { return 2.0f * _rand_0_to_1() - 1.0f; }
__MISC_INLINE vec_float4 _rand_0_to_1_v(void)
{
	vec_float4 all = { _rand_0_to_1(), _rand_0_to_1(), _rand_0_to_1(), _rand_0_to_1() };
	return all;
}
__MISC_INLINE vec_float4 _rand_minus1_to_1_v(void)
{
	vec_float4 all = { _rand_minus1_to_1(), _rand_minus1_to_1(), _rand_minus1_to_1(),
			   _rand_minus1_to_1() };
	return all;
}
static vec_uint4 __misc_seeds __attribute__((unused)) = { 1, 2, 3, 4 };
__MISC_INLINE void _srand_v(vec_uint4 seeds) { __misc_seeds = seeds; }
__MISC_INLINE vec_int4 _rand_v(void)
{
	__misc_seeds = __misc_seeds * 1103515245u + 12345u;
	return (vec_int4)(__misc_seeds >> 1);
}

/* Bounds. */
__MISC_INLINE float _clamp(float x, float least, float most)
{
	return x < least ? least : x > most ? most : x;
}
__MISC_INLINE float _clamp_0_to_1(float x) { return _clamp(x, 0.0f, 1.0f); }
__MISC_INLINE float _clamp_minus1_to_1(float x) { return _clamp(x, -1.0f, 1.0f); }

/* The greater and the lesser of two vectors by elements, and of one vector's elements. */
__MISC_INLINE vec_int4 __misc_chosen(vec_int4 a, vec_int4 b, vec_int4 first)
{
	return (a & first) | (b & ~first);
}
#define __MISC_PICK(name, V, E, operation)                                                         \
	__MISC_INLINE V _##name##_v(V a, V b)                                                      \
	{                                                                                          \
		return (V)__misc_chosen((vec_int4)a, (vec_int4)b, (vec_int4)(a operation b));      \
	}
#define __MISC_ACROSS(name, V, E, operation)                                                       \
	__MISC_INLINE E _##name##3(V v)                                                            \
	{                                                                                          \
		E first = v[0] operation v[1] ? v[0] : v[1];                                       \
		return first operation v[2] ? first : v[2];                                        \
	}                                                                                          \
	__MISC_INLINE E _##name##4(V v)                                                            \
	{                                                                                          \
		E first = _##name##3(v);                                                           \
		return first operation v[3] ? first : v[3];                                        \
	}
__MISC_PICK(max_float, vec_float4, float, >)
__MISC_PICK(min_float, vec_float4, float, <)
__MISC_PICK(max_int, vec_int4, int, >)
__MISC_PICK(min_int, vec_int4, int, <)
__MISC_ACROSS(max_vec_float, vec_float4, float, >)
__MISC_ACROSS(min_vec_float, vec_float4, float, <)
__MISC_ACROSS(max_vec_int, vec_int4, int, >)
__MISC_ACROSS(min_vec_int, vec_int4, int, <)
__MISC_INLINE vec_float4 _clamp_v(vec_float4 x, vec_float4 least, vec_float4 most)
{
	return _min_float_v(_max_float_v(x, least), most);
}
__MISC_INLINE vec_float4 _clamp_0_to_1_v(vec_float4 x)
{
	vec_float4 least = { 0, 0, 0, 0 }, most = { 1, 1, 1, 1 };
	return _clamp_v(x, least, most);
}
__MISC_INLINE vec_float4 _clamp_minus1_to_1_v(vec_float4 x)
{
	vec_float4 least = { -1, -1, -1, -1 }, most = { 1, 1, 1, 1 };
	return _clamp_v(x, least, most);
}

/* Bytes from and to any address. */
__MISC_INLINE vec_uchar16 _load_vec_unaligned(const unsigned char *from)
{
	vec_uchar16 v;
	__builtin_memcpy(&v, from, 16);
	return v;
}
__MISC_INLINE void _store_vec_unaligned(unsigned char *to, vec_uchar16 v) { __builtin_memcpy(to, &v, 16); }
#ifdef __SPU__
/* Bytes of the store to and from the host's memory, whatever their places. */
extern size_t _copy_from_ls(unsigned long long to, unsigned int from, size_t bytes);
extern size_t _copy_to_ls(unsigned int to, unsigned long long from, size_t bytes);
#endif

#include <sidecore_end.h>
#endif

/* Memory by alignment, as the SDK's libmisc: the alignment is given by its logarithm. */
#ifndef _LIBMISC_H_
#define _LIBMISC_H_
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#ifdef __SPU__
extern void *_malloc_align(size_t, unsigned int);
extern void *_calloc_align(size_t, size_t, unsigned int);
extern void *_realloc_align(void *, size_t, unsigned int);
extern void _free_align(void *);
extern float rand_0_to_1(void);
extern float rand_minus1_to_1(void);
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
static __inline__ float rand_0_to_1(void) { return (float)rand() / (float)RAND_MAX; }
static __inline__ float rand_minus1_to_1(void) { return 2.0f * rand_0_to_1() - 1.0f; }
#endif

#ifdef __cplusplus
}
#endif

#include <vec_types.h>
/* Four numbers at once. */
static __inline__ __attribute__((unused)) vec_float4 rand_0_to_1_v(void)
{
	vec_float4 all = { rand_0_to_1(), rand_0_to_1(), rand_0_to_1(), rand_0_to_1() };
	return all;
}
static __inline__ __attribute__((unused)) vec_float4 rand_minus1_to_1_v(void)
{
	vec_float4 all = { rand_minus1_to_1(), rand_minus1_to_1(), rand_minus1_to_1(), rand_minus1_to_1() };
	return all;
}
/* Names without the underscore, of later releases. */
#define malloc_align _malloc_align
#define calloc_align _calloc_align
#define realloc_align _realloc_align
#define free_align _free_align
#endif

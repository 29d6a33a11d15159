/* Memory by alignment, for programs that call libmisc's functions without a declaration. */
#include <malloc.h>

void *malloc_align(unsigned int bytes, unsigned int logarithm)
{
	return memalign((size_t)1 << (logarithm < 4 ? 4 : logarithm), bytes);
}

void free_align(void *memory) { free(memory); }

void *_malloc_align(unsigned int, unsigned int) __attribute__((alias("malloc_align")));
void _free_align(void *) __attribute__((alias("free_align")));

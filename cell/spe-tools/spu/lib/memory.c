/* The heap: first fit between the image's end and the stack, blocks merged as they are freed.
 *
 * Must stay true: blocks are aligned to sixteen bytes, as DMA of a quadword wants; the heap never grows
 * into the room that the running stack has, with some kept between.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct block {
	uint32_t size;		/* of the whole block, with this head; a multiple of 16 */
	uint32_t free;
	struct block *next;	/* the block behind it, 0 for the last */
	uint32_t mark;		/* tells a head from other memory */
};

enum { MARK = 0x5bea4ea9, STORE_BYTES = 0x40000, STACK_KEPT = 4096, UNIT = 16 };

extern char *__sidecore_break __attribute__((visibility("hidden")));
#define top __sidecore_break
static struct block *first;

/* Moves the heap's end, as sbrk does. */
void *sbrk(intptr_t bytes)
{
	char *old, *limit = (char *)__builtin_frame_address(0) - STACK_KEPT;
	old = top;
	if (bytes > 0 && (limit < top || bytes > limit - top)) {
		errno = ENOMEM;
		return (void *)-1;
	}
	top += bytes;
	return old;
}

/* Cuts what a block has beyond `size`. */
static void cut(struct block *block, uint32_t size)
{
	struct block *rest = (struct block *)((char *)block + size);
	if (block->size - size < 2 * UNIT)
		return;
	rest->size = block->size - size;
	rest->free = 1;
	rest->next = block->next;
	rest->mark = MARK;
	block->size = size;
	block->next = rest;
}

static void merge(struct block *block)
{
	while (block->next && block->next->free && (char *)block + block->size == (char *)block->next) {
		block->size += block->next->size;
		block->next = block->next->next;
	}
}

/* Apart from malloc, so that the compiler assumes nothing about the memory before a block. */
static void *__attribute__((noipa)) allocate(size_t bytes)
{
	struct block *block, *last = 0;
	uint32_t size;
	if (bytes > STORE_BYTES) {
		errno = ENOMEM;
		return 0;
	}
	size = ((bytes ? bytes : 1) + sizeof *block + UNIT - 1) & -UNIT;
	/* A context that runs again begins with an empty heap. */
	if (first && (char *)first >= top)
		first = 0;
	for (block = first; block; last = block, block = block->next) {
		if (!block->free)
			continue;
		merge(block);
		if (block->size >= size) {
			cut(block, size);
			block->free = 0;
			return block + 1;
		}
	}
	block = sbrk(size);
	if (block == (void *)-1)
		return 0;
	block->size = size;
	block->free = 0;
	block->next = 0;
	block->mark = MARK;
	if (last)
		last->next = block;
	else
		first = block;
	return block + 1;
}

void *malloc(size_t bytes) { return allocate(bytes); }

void free(void *memory)
{
	struct block *block = (struct block *)memory - 1;
	if (!memory)
		return;
	if (block->mark != MARK || block->free)
		abort();
	block->free = 1;
	merge(block);
}

void *calloc(size_t count, size_t size)
{
	void *memory = size && count > STORE_BYTES / size ? 0 : malloc(count * size);
	if (memory)
		memset(memory, 0, count * size);
	return memory;
}

void *realloc(void *memory, size_t bytes)
{
	struct block *block = (struct block *)memory - 1;
	uint32_t size = (bytes + sizeof *block + UNIT - 1) & -UNIT;
	void *fresh;
	if (!memory)
		return malloc(bytes);
	if (block->mark != MARK || block->free)
		abort();
	if (bytes <= STORE_BYTES) {
		merge(block);
		if (block->size >= size) {
			cut(block, size);
			return memory;
		}
	}
	fresh = malloc(bytes);
	if (!fresh)
		return 0;
	memcpy(fresh, memory, block->size - sizeof *block);
	free(memory);
	return fresh;
}

void *memalign(size_t alignment, size_t bytes)
{
	struct block *block, *inner;
	char *memory, *aligned;
	if (alignment <= UNIT)
		return malloc(bytes);
	if (alignment & (alignment - 1) || bytes > STORE_BYTES || alignment > STORE_BYTES) {
		errno = EINVAL;
		return 0;
	}
	memory = allocate(bytes + alignment + sizeof *block);
	if (!memory)
		return 0;
	aligned = (char *)(((uintptr_t)memory + alignment - 1) & -alignment);
	if (aligned == memory)
		return memory;
	/* The part before becomes a free block of its own; it has room for a head at least. */
	block = (struct block *)memory - 1;
	inner = (struct block *)aligned - 1;
	inner->size = (char *)block + block->size - (char *)inner;
	inner->free = 0;
	inner->next = block->next;
	inner->mark = MARK;
	block->size = (char *)inner - (char *)block;
	block->next = inner;
	block->free = 1;
	return aligned;
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
	void *found = memalign(alignment, bytes);
	if (!found)
		return ENOMEM;
	*memory = found;
	return 0;
}

/* libmisc: alignment by its logarithm. */
void *_malloc_align(size_t bytes, unsigned int logarithm) { return memalign(1u << logarithm, bytes); }
void _free_align(void *memory) { free(memory); }

void *_calloc_align(size_t count, size_t size, unsigned int logarithm)
{
	void *memory = memalign(1u << logarithm, count * size);
	if (memory)
		memset(memory, 0, count * size);
	return memory;
}

void *_realloc_align(void *old, size_t bytes, unsigned int logarithm)
{
	void *memory = memalign(1u << logarithm, bytes);
	size_t before = old ? ((struct block *)old - 1)->size - sizeof(struct block) : 0;
	if (memory && old) {
		memcpy(memory, old, before < bytes ? before : bytes);
		free(old);
	}
	return memory;
}

/* Names that programs call without a declaration. */
void *malloc_align(size_t, unsigned int) __attribute__((alias("_malloc_align")));
void free_align(void *) __attribute__((alias("_free_align")));

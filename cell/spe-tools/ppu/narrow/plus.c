/* C++'s operators new and delete for a size_t of 4 bytes, by the names that the compiler gives them. */
#include <stdint.h>
#include <stdlib.h>

void *_Znwj(uint32_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);
	if (!memory)
		abort();
	return memory;
}

void *_Znaj(uint32_t bytes) { return _Znwj(bytes); }
void _ZdlPvj(void *memory, uint32_t bytes)
{
	(void)bytes;
	free(memory);
}
void _ZdaPvj(void *memory, uint32_t bytes) { _ZdlPvj(memory, bytes); }

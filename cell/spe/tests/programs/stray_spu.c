/* Goes astray as programs of an SPU may: each check that fails adds a bit. */
#include "spu.h"

static u32 words[16] __attribute__((aligned(16)));

static __attribute__((noinline)) u32 answer(u32 x) { return x + 40; }

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	volatile u32 zero = 0, far = 0x40000, store = (u32)words & ~0x3ffffu;
	u32 *null = (u32 *)(u32)(zero + 48), *beside = (u32 *)(u32)((u32)words + far);
	char *from = (char *)words, *to = (char *)beside + 32;
	u32 bad = 0, each, loaded[4] __attribute__((aligned(16)));
	/* Behind the ELF header, whose bytes nobody reads any more. */
	null[0] = 0x12345678;
	bad |= *(u32 *)(u32)(store + 48) != 0x12345678 ? 1 : 0;
	null[0] += 1;
	bad |= null[0] != 0x12345679 ? 2 : 0;
	beside[3] = 7;
	bad |= words[3] != 7 || beside[3] != 7 ? 4 : 0;
	for (each = 0; each < 4; each++)
		words[each] = 100 + each;
	__asm__ volatile("rep movsb" : "+S"(from), "+D"(to) : "c"(16) : "memory");
	bad |= words[8] != 100 || words[11] != 103 || (u32)to != (u32)beside + 48 ? 8 : 0;
	/* A quadword's address loses its last bits. */
	__asm__ volatile("movaps (%0), %%xmm0\n\tmovaps %%xmm0, %1"
			 : : "r"((u64)(u32)words + 5), "m"(loaded) : "xmm0", "memory");
	bad |= loaded[0] != 100 || loaded[3] != 103 ? 16 : 0;
	/* A register that is loaded through itself, and one byte of it. */
	each = (u32)beside;
	__asm__ volatile("mov (%q0), %0" : "+r"(each) : : "memory");
	bad |= each != 100 ? 32 : 0;
	/* A function by its place in the store. */
	u32 (*volatile place)(u32) = (u32 (*)(u32))(u64)((u32)(u64)answer & 0x3ffffu);
	bad |= place(2) != 42 ? 64 : 0;
	/* The SPU's stop instruction in data, called: an exit with 9. Its bytes are an access here. */
	volatile u32 stop[4] = {0x2009, 0x4020007f, 0x4020007f, 0x35000000};
	if (!bad)
		((void (*)(void))(u32)stop)();
	return bad;
}

/* A start for the tests' own SPU programs, and the gate's operations. */
typedef unsigned long long u64;
typedef unsigned int u32;

extern u64 gate(u32 op, u64 a, u64 b, u64 c, u64 d);

__asm__(
	".section .note.sidecore,\"a\",@note\n"
	".balign 4\n"
	".long 13, 4, 1\n"
	".asciz \"Sidecore-SPU\"\n"
	".balign 4\n"
	".long 1\n"
	".text\n"
	".globl _start\n"
	"_start:\n"
	"movq %rcx, gate_address(%rip)\n"
	"movq %r8, %rcx\n"
	"call begin\n"
	"ud2\n"
	"gate:\n"
	"jmp *gate_address(%rip)\n");

u64 gate_address;
int spu(u64 id, u64 argp, u64 envp, u32 *registers);

void begin(u64 id, u64 argp, u64 envp, u32 *registers)
{
	gate(5, spu(id, argp, envp, registers), 0, 0, 0);
}

#define READ(channel) ((u32)gate(1, channel, 0, 0, 0))
#define WRITE(channel, value) gate(2, channel, value, 0, 0)
#define COUNT(channel) ((u32)gate(3, channel, 0, 0, 0))
#define STOP(code, block) gate(4, code, (u32)(block), 0, 0)
#define MFC(ls, ea, size, tag, command) gate(7, (u32)(ls), ea, (size) | (u64)(tag) << 32, command)
#define FROM_HOST() READ(29)
#define TO_HOST(value) WRITE(28, value)
#define INTERRUPT(value) WRITE(30, value)
#define PUT 0x20
#define GET 0x40

static inline u32 wait_tags(u32 mask)
{
	WRITE(22, mask);
	WRITE(23, 2);
	return READ(24);
}

void *memset(void *to, int value, unsigned size)
{
	char *each = to;
	while (size--)
		*each++ = value;
	return to;
}

void *memcpy(void *to, const void *from, unsigned size)
{
	char *each = to;
	const char *source = from;
	while (size--)
		*each++ = *source++;
	return to;
}

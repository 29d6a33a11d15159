/* Start of an SPU program, and the way to the host.
 *
 * The host enters at _start on the store's stack: rdi = id, rsi = argp, rdx = envp, rcx = address of the
 * gate, r8 = address of the user's registers or 0. Everything a program asks of the host goes through
 * __sidecore_call, a jump to the gate: x32 passes 64-bit arguments in the same registers as the gate's
 * ABI, so no register moves.
 */
__asm__(
	".section .note.sidecore,\"a\",@note\n"
	".balign 4\n"
	".long 13, 4, 1\n"
	".asciz \"Sidecore-SPU\"\n"
	".balign 4\n"
	".long 1\n"
	".text\n"
	".globl _start\n"
	".type _start,@function\n"
	"_start:\n"
	/* Tells the store's address to pointers that are made from numbers. */
	".globl __sidecore_place\n"
	".hidden __sidecore_place\n"
	"__sidecore_place:\n"
	"xorl %ebp, %ebp\n"
	"movq %rcx, __sidecore_gate(%rip)\n"
	"movl %r8d, %ecx\n"
	"andl $-16, %esp\n"
	"call __sidecore_main\n"
	"ud2\n"
	".size _start, .-_start\n"
	".globl __sidecore_call\n"
	".hidden __sidecore_call\n"
	".type __sidecore_call,@function\n"
	"__sidecore_call:\n"
	"jmp *__sidecore_gate(%rip)\n"
	".size __sidecore_call, .-__sidecore_call\n");

unsigned long long __sidecore_gate __attribute__((visibility("hidden")));

extern int main(unsigned long long, unsigned long long, unsigned long long);
extern void exit(int) __attribute__((noreturn));

typedef void (*function)(void);
extern function __preinit_array_start[] __attribute__((weak, visibility("hidden")));
extern function __preinit_array_end[] __attribute__((weak, visibility("hidden")));
extern function __init_array_start[] __attribute__((weak, visibility("hidden")));
extern function __init_array_end[] __attribute__((weak, visibility("hidden")));

typedef unsigned int quadword __attribute__((vector_size(16)));

extern char _end[] __attribute__((visibility("hidden")));
extern unsigned long long __sidecore_call(unsigned int, unsigned long long, unsigned long long,
					  unsigned long long, unsigned long long)
	__attribute__((visibility("hidden")));

/* The heap's end. The host reports a stack that has grown below it at the next call. */
char *__sidecore_break __attribute__((visibility("hidden")));
enum { GATE_BREAK = 8, BREAK_UNIT = 16 };

/* The program's main under a second name, so that one definition is called with both kinds of arguments. */
extern int vector_main(unsigned long long, unsigned long long, unsigned long long,
		       quadword, quadword, quadword) __asm__("main");

/* The number in the first half of a register, as the host's program has written it there. */
static unsigned long long doubleword(quadword value)
{
	typedef unsigned long long halves __attribute__((vector_size(16)));
	return ((halves)value)[0];
}

/* In the third register's number: the others are a count of texts of the host's and their addresses. */
static const unsigned long long TEXTS = 0x7374786574ULL;

/* Calls main with copies of the texts in the store, which is all that calls of the host take. */
static __attribute__((noinline)) int main_of_texts(unsigned int count, char **texts)
{
	unsigned int bytes = 0, each;
	char **own = __builtin_alloca((count + 1) * sizeof *own), *place;
	for (each = 0; each < count; each++) {
		const char *text = texts[each];
		do
			bytes++;
		while (*text++);
	}
	place = __builtin_alloca(bytes);
	for (each = 0; each < count; each++) {
		const char *text = texts[each];
		own[each] = place;
		while ((*place++ = *text++))
			;
	}
	own[count] = 0;
	return main(count, (unsigned int)own, 0);
}

/* Arguments of main: the three numbers of spe_context_run; where the program was started with
 * SPE_RUN_USER_REGS, the user's three registers, as vectors and in the numbers' place. */
void __attribute__((noreturn, visibility("hidden")))
__sidecore_main(unsigned long long id, unsigned long long argp, unsigned long long envp,
		const quadword *registers)
{
	function *each;
	__sidecore_break = (char *)(((unsigned int)_end + BREAK_UNIT - 1) & -BREAK_UNIT);
	__sidecore_call(GATE_BREAK, (unsigned int)&__sidecore_break, 0, 0, 0);
	for (each = __preinit_array_start; each < __preinit_array_end; each++)
		(*each)();
	for (each = __init_array_start; each < __init_array_end; each++)
		(*each)();
	if (registers && doubleword(registers[2]) == TEXTS)
		exit(main_of_texts((unsigned int)doubleword(registers[0]),
				   (char **)(unsigned int)doubleword(registers[1])));
	if (registers)
		exit(vector_main(doubleword(registers[0]), doubleword(registers[1]),
				 doubleword(registers[2]),
				 registers[0], registers[1], registers[2]));
	exit(main(id, argp, envp));
}

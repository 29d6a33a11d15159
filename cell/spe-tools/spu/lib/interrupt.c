/* Interrupts: the host makes the program go on at __sidecore_interrupt_entry, with the address to return to
 * below the red zone, and interrupts disabled. All registers are saved, so that a handler may be any C
 * function: the one of the section .interrupt, as at address 0 of an SPU, or the library's, which calls
 * those that spu_slih_register names.
 *
 * Handlers end by returning or by `iret`, which sidecore_assembler.h makes a jump to __sidecore_iret; what
 * they have on the stack is dropped.
 */
#include <spu_timer.h>
#include "call.h"

enum { READ_EVENTS = 0, WRITE_ACK = 2 };

/* Place of the registers of the interrupt that is being handled; each keeps that of the one before. */
u32 __sidecore_interrupted __attribute__((visibility("hidden")));

__asm__(
	".text\n"
	".globl __sidecore_interrupt_entry\n"
	".hidden __sidecore_interrupt_entry\n"
	".type __sidecore_interrupt_entry,@function\n"
	"__sidecore_interrupt_entry:\n"
	"pushfq\n push %rax\n push %rbx\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n push %rbp\n"
	"push %r8\n push %r9\n push %r10\n push %r11\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"cld\n"
	"movl __sidecore_interrupted(%rip), %eax\n"
	"push %rax\n"
	"movl %esp, __sidecore_interrupted(%rip)\n"
	"leal -512(%rsp), %esp\n"
	"andl $-64, %esp\n"
	"fxsave64 (%rsp)\n"
	"call __sidecore_interrupt\n"
	".globl __sidecore_iret\n"
	".hidden __sidecore_iret\n"
	"__sidecore_iret:\n"
	"movl __sidecore_interrupted(%rip), %ebx\n"
	"leal -512(%rbx), %esp\n"
	"andl $-64, %esp\n"
	"fxrstor64 (%rsp)\n"
	"movl %ebx, %esp\n"
	"pop %rax\n"
	"movl %eax, __sidecore_interrupted(%rip)\n"
	"pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %r11\n pop %r10\n pop %r9\n pop %r8\n"
	"pop %rbp\n pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %rbx\n pop %rax\n popfq\n"
	"ret $128\n"
	".globl __sidecore_irete\n"
	".hidden __sidecore_irete\n"
	"__sidecore_irete:\n"
	"andl $-16, %esp\n"
	"call __sidecore_ienable\n"
	"jmp __sidecore_iret\n");

extern void __sidecore_interrupt_entry(void) __attribute__((visibility("hidden")));
/* The section .interrupt, by the linker's script. */
extern const char __sidecore_vector_begin[] __attribute__((weak, visibility("hidden")));
extern const char __sidecore_vector_end[] __attribute__((weak, visibility("hidden")));

void __sidecore_ienable(void)
{
	__sidecore_call(GATE_INTERRUPTS, (u32)__sidecore_interrupt_entry, 0, 0, 0);
}

void __sidecore_idisable(void)
{
	__sidecore_call(GATE_INTERRUPTS, 0, 0, 0, 0);
}

static unsigned (*handlers[32])(unsigned);

void spu_slih_register(unsigned mask, unsigned (*handler)(unsigned))
{
	int event;
	for (event = 0; event < 32; event++)
		if (mask >> event & 1)
			handlers[event] = handler;
}

/* The library's handler: the most important event first; what a handler leaves is for the next one. */
static void first_level(void)
{
	unsigned events;
	if (!__sidecore_call(GATE_COUNT, READ_EVENTS, 0, 0, 0))
		return;
	events = (unsigned)__sidecore_call(GATE_READ, READ_EVENTS, 0, 0, 0);
	__sidecore_call(GATE_WRITE, WRITE_ACK, events, 0, 0);
	while (events) {
		int event = 31 - __builtin_clz(events);
		unsigned left = events & ~(1u << event);
		if (handlers[event])
			left &= handlers[event](events);
		events = left;
	}
}

__attribute__((used, visibility("hidden"))) void __sidecore_interrupt(void)
{
	if (__sidecore_vector_end > __sidecore_vector_begin) {
		((void (*)(void))__sidecore_vector_begin)();
		return;
	}
	first_level();
	__sidecore_ienable();
}

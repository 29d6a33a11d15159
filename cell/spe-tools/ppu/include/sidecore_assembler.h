/* Instructions of the PPE that programs write in asm statements, as macros of this machine's assembler. */
#ifndef SIDECORE_ASSEMBLER_H
#define SIDECORE_ASSEMBLER_H
#ifndef __ASSEMBLER__
__asm__(".ifndef sidecore_macros\n"
	".set sidecore_macros, 1\n"
	".macro sync\n mfence\n .endm\n"
	".macro lwsync\n mfence\n .endm\n"
	".macro ptesync\n mfence\n .endm\n"
	".macro eieio\n mfence\n .endm\n"
	".macro isync\n lfence\n .endm\n"
	/* The time base: of this machine's counter a 32nd, which is about as fast as the Cell's 79.8 MHz. The stack
	 * below its pointer may be in use. */
	".macro mftb to, half=268\n"
	" lea -152(%rsp), %rsp\n push %rax\n push %rdx\n pushfq\n rdtsc\n shl $32, %rdx\n or %rdx, %rax\n"
	" shr $5, %rax\n mov %rax, 24(%rsp)\n popfq\n pop %rdx\n pop %rax\n"
	" .if \\half == 269\n mov 4(%rsp), \\to\n .else\n mov (%rsp), \\to\n .endif\n lea 152(%rsp), %rsp\n .endm\n"
	".macro mftbl to\n mftb \\to, 268\n .endm\n"
	".macro mftbu to\n mftb \\to, 269\n .endm\n"
	".macro dcbt a, b\n .endm\n"
	".macro dcbst a, b\n .endm\n"
	".macro dcbf a, b\n .endm\n"
	".endif\n");
#endif
#endif

/* Instructions of the SPU that programs write in asm statements, as macros of this machine's assembler. */
#ifndef SIDECORE_ASSEMBLER_H
#define SIDECORE_ASSEMBLER_H
#ifndef __ASSEMBLER__
__asm__(".ifndef sidecore_macros\n"
	".set sidecore_macros, 1\n"
	".macro sync\n mfence\n .endm\n"
	".macro syncc\n mfence\n .endm\n"
	".macro dsync\n mfence\n .endm\n"
	".macro lnop\n .endm\n"
	/* With the register that it does not write, as an SPU's has. */
	".macro nop register=\n .byte 0x90\n .endm\n"
	/* Hints of branches. */
	".macro hbr a, b\n .endm\n"
	".macro hbra a, b\n .endm\n"
	".macro hbrr a, b\n .endm\n"
	".macro hbrp a=, b=\n .endm\n"
	/* An interrupt's handler ends; e and d as the instruction's features. */
	".macro iret\n jmp __sidecore_iret\n .endm\n"
	".macro irete\n jmp __sidecore_irete\n .endm\n"
	".macro iretd\n jmp __sidecore_iret\n .endm\n"
	".endif\n");
#endif
#endif

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
	".macro dcbt a, b\n .endm\n"
	".macro dcbst a, b\n .endm\n"
	".macro dcbf a, b\n .endm\n"
	".endif\n");
#endif
#endif

/* Register 1 as programs read it: the stack's pointer, and the bytes between it and the heap. */
#include <spu_intrinsics.h>

extern char *__sidecore_break __attribute__((visibility("hidden")));

vec_uint4 __sidecore_stack_register(void)
{
	unsigned int top = (unsigned int)__builtin_frame_address(0) + 16;
	vec_uint4 both = { top, top - (unsigned int)__sidecore_break, 0, 0 };
	return both;
}

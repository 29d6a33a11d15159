/* Calls of the host's library by callbacks, the program's exit, and stop-and-signal. */
#include <errno.h>
#include <stdlib.h>
#include "call.h"

/* errno is one word of the store; the header asks for its address. */
static int error_number;
int *__errno_location(void)
{
	return &error_number;
}

u32 __sidecore_callback(u32 stop, u32 operation, struct slot *slots)
{
	/* The word behind the stop instruction, as the SPU has it there. */
	u32 block[4] __attribute__((aligned(16)));
	block[0] = operation << 24 | ((u32)slots & 0x3ffff);
	__sidecore_call(GATE_STOP, stop, (u32)block, 0, 0);
	/* Also behind a success, as newlib's has it. */
	errno = slots[0].word[3];
	return slots[0].word[0];
}

/* The callback that programs of the time call themselves. */
int __send_to_ppe(unsigned int stop, unsigned int operation, void *data)
{
	u32 block[4] __attribute__((aligned(16)));
	block[0] = operation << 24 | ((u32)data & 0x3ffff);
	__sidecore_call(GATE_STOP, stop, (u32)block, 0, 0);
	return 0;
}

void __sidecore_stop(unsigned int code)
{
	__sidecore_call(GATE_STOP, code & 0x3fff, 0, 0, 0);
}

void __sidecore_halt(void)
{
	__sidecore_call(GATE_HALT, 0, 0, 0, 0);
}

enum { AT_EXIT_MAX = 32 };
static void (*at_exit[AT_EXIT_MAX])(void);
static int at_exit_count;

int atexit(void (*function)(void))
{
	if (at_exit_count == AT_EXIT_MAX)
		return -1;
	at_exit[at_exit_count++] = function;
	return 0;
}

struct destructor {
	void (*function)(void *);
	void *object;
};
static struct destructor destructors[AT_EXIT_MAX];
static int destructor_count;

int __cxa_atexit(void (*function)(void *), void *object, void *library)
{
	if (destructor_count == AT_EXIT_MAX)
		return -1;
	destructors[destructor_count].function = function;
	destructors[destructor_count++].object = object;
	return 0;
}

void *__dso_handle __attribute__((visibility("hidden")));

typedef void (*function)(void);
extern function __fini_array_start[] __attribute__((weak, visibility("hidden")));
extern function __fini_array_end[] __attribute__((weak, visibility("hidden")));

void __attribute__((noreturn)) _exit(int status)
{
	for (;;)
		__sidecore_call(GATE_EXIT, (u32)status, 0, 0, 0);
}

void _Exit(int status) __attribute__((noreturn, alias("_exit")));

void exit(int status)
{
	function *each;
	while (at_exit_count > 0)
		at_exit[--at_exit_count]();
	while (destructor_count > 0) {
		destructor_count--;
		destructors[destructor_count].function(destructors[destructor_count].object);
	}
	for (each = __fini_array_end; each > __fini_array_start;)
		(*--each)();
	_exit(status);
}

void abort(void)
{
	__sidecore_halt();
	_exit(134);
}

/* main on a stack below 4 GiB, for hosts that put addresses into words. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <ucontext.h>

enum { MAIN_STACK_BYTES = 8 << 20 };

extern int __real_main(int count, char **arguments, char **environment);
static ucontext_t before, within;
static int main_count, main_result;
static char **main_arguments, **main_environment;

static void main_within(void)
{
	main_result = __real_main(main_count, main_arguments, main_environment);
}

int __wrap_main(int count, char **arguments, char **environment)
{
	void *stack = mmap(0, MAIN_STACK_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_32BIT, -1, 0);

	main_count = count;
	main_arguments = arguments;
	main_environment = environment;
	if (stack == MAP_FAILED || getcontext(&within))
		return __real_main(count, arguments, environment);
	within.uc_stack.ss_sp = stack;
	within.uc_stack.ss_size = MAIN_STACK_BYTES;
	within.uc_link = &before;
	makecontext(&within, main_within, 0);
	swapcontext(&before, &within);
	return main_result;
}

/* A host for SPU programs that stand alone: elfspe PROGRAM ARGUMENTS... runs one in a context, as the
 * system did with a program of the SPU. Its main gets the arguments' count and the arguments.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <libspe2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments)
{
	/* The first half of each register is its number. */
	static uint64_t registers[3][2] __attribute__((aligned(16)));
	unsigned int entry = SPE_DEFAULT_ENTRY;
	size_t bytes = 4 * (size_t)(count + 1);
	spe_program_handle_t *image;
	spe_context_ptr_t spe;
	spe_stop_info_t stop;
	uint32_t *list;
	char *text;
	int each;

	if (count < 2) {
		fputs("usage: elfspe PROGRAM ARGUMENTS...\n", stderr);
		return 2;
	}
	for (each = 1; each < count; each++)
		bytes += strlen(arguments[each]) + 1;
	/* Pointers of an SPU have 32 bits. */
	list = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	if (list == MAP_FAILED) {
		fprintf(stderr, "elfspe: no memory below 4 GiB: %s\n", strerror(errno));
		return 2;
	}
	text = (char *)(list + count + 1);
	for (each = 1; each < count; each++) {
		list[each - 1] = (uintptr_t)text;
		text = stpcpy(text, arguments[each]) + 1;
	}
	registers[0][0] = count - 1;
	registers[1][0] = (uintptr_t)list;
	/* Says that these are texts to copy. */
	registers[2][0] = 0x7374786574;
	image = spe_image_open(arguments[1]);
	if (!image) {
		fprintf(stderr, "elfspe: %s: %s\n", arguments[1], strerror(errno));
		return 2;
	}
	spe = spe_context_create(0, 0);
	if (!spe || spe_program_load(spe, image)) {
		fprintf(stderr, "elfspe: %s cannot be loaded: %s\n", arguments[1], strerror(errno));
		return 2;
	}
	if (spe_context_run(spe, &entry, SPE_RUN_USER_REGS, registers, 0, &stop) < 0 ||
	    stop.stop_reason != SPE_EXIT) {
		fprintf(stderr, "elfspe: %s stopped, reason %u: %s\n", arguments[1], stop.stop_reason,
			strerror(errno));
		return 2;
	}
	return stop.result.spe_exit_code;
}

/* A program that goes astray runs to its end, several at a time. */
#include "host.h"

int main(int count, char **arguments)
{
	struct running own[4];
	spe_context_ptr_t spes[4];
	(void)count;
	for (int each = 0; each < 4; each++) {
		spes[each] = load(arguments[1], 0);
		start(&own[each], spes[each], 0, 0);
	}
	for (int each = 0; each < 4; each++) {
		finish(&own[each]);
		fprintf(stderr, "%d: %d\n", own[each].result, own[each].stop.result.spe_exit_code);
		CHECK(own[each].result == 0 && own[each].stop.result.spe_exit_code == 9);
		CHECK(spe_context_destroy(spes[each]) == 0);
	}
	return 0;
}

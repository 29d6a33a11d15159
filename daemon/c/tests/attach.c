/* Attaches, allocates, calls and detaches: in places where that once failed. Exit status 3 where
 * another user pretends to be the daemon, and is refused. */
#include "sidecore.h"
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct sidecore *sc = NULL;
	struct sidecore_options options;
	struct sidecore_request rq;
	struct sidecore_buffer values;
	double sum;
	int error;

	if (argc < 2)
		return 2;
	/* A busy machine is not taken for a dead daemon. */
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.path = argv[1];
	options.arena_bytes = 1 << 20;
	options.silence_ms = 60000;
	error = sidecore_attach_with(&sc, &options);
	if (error != 0 || sc == NULL) {
		printf("attach: %d, %s\n", error, sidecore_attach_text(error));
		sidecore_detach(sc);
		return error == SIDECORE_UNTRUSTED ? 3 : 1;
	}
	printf("ready\n");
	values = sidecore_alloc(sc, 2 * sizeof sum);
	if (values.data == NULL)
		return 1;
	((double *)values.data)[0] = 1.25;
	((double *)values.data)[1] = 2.25;
	memset(&rq, 0, sizeof rq);
	rq.inputs[0] = &values;
	rq.input_count = 1;
	error = sidecore_call(sc, sidecore_kernel(sc, "sum_f64"), &rq);
	memcpy(&sum, &rq.reply[0], sizeof sum);
	if (error != 0) {
		printf("call: %d\n", error);
		return 1;
	}
	printf("sum %g\n", sum);
	sidecore_free(&values);
	sidecore_detach(sc);
	return 0;
}

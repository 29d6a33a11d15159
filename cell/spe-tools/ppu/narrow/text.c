/* Texts and arrays of them, from and to memory below 4 GiB. */
#include "narrow.h"
#include <pthread.h>

struct copy {
	const char *of;
	char *text;
	struct copy *next;
};

static struct copy *copies;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

char *__narrow_text(const char *text)
{
	struct copy *copy;
	if ((uintptr_t)text >> 32 == 0)
		return (char *)text;
	pthread_mutex_lock(&lock);
	for (copy = copies; copy && (copy->of != text || strcmp(copy->text, text)); copy = copy->next)
		;
	if (!copy && (copy = malloc(sizeof *copy))) {
		copy->of = text;
		copy->text = strdup(text);
		copy->next = copies;
		copies = copy;
	}
	pthread_mutex_unlock(&lock);
	return copy ? copy->text : 0;
}

char **__narrow_widened(const word *array)
{
	size_t count = 0, each;
	char **result;
	while (array[count])
		count++;
	result = calloc(count + 1, sizeof *result);
	for (each = 0; result && each < count; each++)
		result[each] = wide(array[each]);
	return result;
}

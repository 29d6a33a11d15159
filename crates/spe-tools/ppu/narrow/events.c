/* Events of libspe2: an event names its context by a pointer. */
#include "narrow.h"

struct narrow_event {
	uint32_t events;
	word context;
	uint64_t data;
};
struct wide_event {
	uint32_t events;
	void *context;
	uint64_t data;
};

extern int spe_event_handler_register(void *handler, struct wide_event *event);
extern int spe_event_handler_deregister(void *handler, struct wide_event *event);
extern int spe_event_wait(void *handler, struct wide_event *events, int count, int timeout);

static struct wide_event widened(const struct narrow_event *given)
{
	struct wide_event own = {given->events, wide(given->context), given->data};
	return own;
}

int __narrow_spe_event_handler_register(void *handler, struct narrow_event *event)
{
	struct wide_event own;
	if (!event)
		return spe_event_handler_register(handler, 0);
	own = widened(event);
	return spe_event_handler_register(handler, &own);
}

int __narrow_spe_event_handler_deregister(void *handler, struct narrow_event *event)
{
	struct wide_event own;
	if (!event)
		return spe_event_handler_deregister(handler, 0);
	own = widened(event);
	return spe_event_handler_deregister(handler, &own);
}

int __narrow_spe_event_wait(void *handler, struct narrow_event *events, int count, int timeout)
{
	int result, each;
	struct wide_event *own = events && count > 0 ? calloc(count, sizeof *own) : 0;
	result = spe_event_wait(handler, own, count, timeout);
	for (each = 0; own && each < result; each++)
		events[each] = (struct narrow_event){own[each].events, narrowed(own[each].context),
						     own[each].data};
	free(own);
	return result;
}

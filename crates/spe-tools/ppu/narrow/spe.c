/* libspe2: an event names its context by a pointer, and a store's addresses lie above 4 GiB. */
#include "narrow.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

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

/* Views of stores. A program adds an offset or a pointer of the SPU's to a view, in words of 32 bits; so a
 * view is two mappings, of which the second lies a store's address behind the first, modulo 2^32.
 */
enum { STORE_BYTES = 256 << 10, TRIES_MAX = 64 };

struct view {
	void *context;
	uint32_t offsets, pointers;
	struct view *next;
};

static struct view *views;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

extern void *spe_ls_area_get(void *context);
extern int spe_context_destroy(void *context);

/* The store's address below 4 GiB: the first mapping of the file that is mapped at `area`; 0 if none is. */
static uint32_t store_address(uintptr_t area)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint32_t found = 0;
	char line[512], wanted[64] = "", file[64];
	int pass;
	for (pass = 0; maps && pass < 2 && !found; pass++) {
		rewind(maps);
		while (fgets(line, sizeof line, maps)) {
			uint64_t start, end;
			char device[32];
			unsigned long inode;
			if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %31s %lu", &start, &end, device, &inode) != 4)
				continue;
			snprintf(file, sizeof file, "%s %lu", device, inode);
			if (pass == 0 && start <= area && area < end)
				strcpy(wanted, file);
			if (pass == 1 && start < UINT32_MAX && !strcmp(file, wanted)) {
				found = (uint32_t)start;
				break;
			}
		}
	}
	if (maps)
		fclose(maps);
	return found;
}

/* Two places for mappings of a store at the distance of its address; 0 where there are none. */
static uint32_t places(uint32_t store)
{
	void *tried[TRIES_MAX];
	int count = 0;
	uint32_t result = 0;
	while (count < TRIES_MAX && !result) {
		void *first = mmap(0, STORE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
		void *wanted = wide(narrowed(first) + store), *second;
		if (first == MAP_FAILED)
			break;
		second = mmap(wanted, STORE_BYTES, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (second == wanted)
			result = narrowed(first);
		else {
			if (second != MAP_FAILED)
				munmap(second, STORE_BYTES);
			tried[count++] = first;
		}
	}
	while (count > 0)
		munmap(tried[--count], STORE_BYTES);
	return result;
}

/* A second mapping of shared memory at a place of ours. */
static int copied(void *area, uint32_t place)
{
	return mremap(area, 0, STORE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, wide(place)) == wide(place);
}

void *__narrow_spe_ls_area_get(void *context)
{
	void *area = spe_ls_area_get(context), *result = 0;
	struct view *view;
	if (!area || (uintptr_t)area == UINTPTR_MAX)
		return area;
	pthread_mutex_lock(&lock);
	for (view = views; view && view->context != context; view = view->next)
		;
	if (!view) {
		uint32_t store = store_address((uintptr_t)area), place = store ? places(store) : 0;
		if (place && copied(area, place) && copied(area, place + store) && (view = calloc(1, sizeof *view))) {
			*view = (struct view){context, place, place + store, views};
			views = view;
		}
	}
	if (view)
		result = wide(view->offsets);
	pthread_mutex_unlock(&lock);
	return result;
}

int __narrow_spe_context_destroy(void *context)
{
	int result = spe_context_destroy(context);
	struct view **at, *view = 0;
	if (result)
		return result;
	pthread_mutex_lock(&lock);
	for (at = &views; *at && (*at)->context != context; at = &(*at)->next)
		;
	if (*at) {
		view = *at;
		*at = view->next;
		munmap(wide(view->offsets), STORE_BYTES);
		munmap(wide(view->pointers), STORE_BYTES);
	}
	pthread_mutex_unlock(&lock);
	free(view);
	return 0;
}

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

/* Views of stores. A program adds an offset to a view, or a pointer of the SPU's, its own or of a program whose
 * store is near by, in words of 32 bits. So a view is several mappings: those for pointers lie a store's address
 * behind the first, modulo 2^32.
 */
enum { STORE_BYTES = 256 << 10, SLOT_BYTES = 3 * STORE_BYTES, NEIGHBOURS = 16, VIEW_STEP = 32 << 20 };

struct view {
	void *area;
	uint32_t offsets, pointers, bytes;
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

/* Reserves memory at a place of ours; 0 if there is some. */
static int reserved(uint64_t place, uint32_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	void *wanted = (void *)place, *got;
	if (place + bytes > UINT32_MAX)
		return 0;
	got = mmap(wanted, bytes, PROT_NONE, flags, -1, 0);
	if (got != MAP_FAILED && got != wanted)
		munmap(got, bytes);
	return got == wanted;
}

/* Two places for mappings of a store, with this many neighbours on either side; 0 where there are none. */
static int places(struct view *view, uint32_t store, uint32_t neighbours)
{
	uint32_t place;
	view->bytes = 2 * neighbours * SLOT_BYTES + STORE_BYTES;
	for (place = 0xe0000000; place > 0x20000000; place -= VIEW_STEP) {
		view->offsets = place;
		view->pointers = place + store - neighbours * SLOT_BYTES;
		if (!reserved(place, STORE_BYTES))
			continue;
		if (reserved(view->pointers, view->bytes))
			return 1;
		munmap(wide(place), STORE_BYTES);
	}
	return 0;
}

/* A second mapping of shared memory at a place of ours. */
static int copied(void *area, uint32_t place)
{
	return mremap(area, 0, STORE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, wide(place)) == wide(place);
}

/* The view of a store whose area, above 4 GiB, is given; 0 where there is no place for one. */
static void *view_of(void *area)
{
	void *result = 0;
	struct view *view;
	pthread_mutex_lock(&lock);
	for (view = views; view && view->area != area; view = view->next)
		;
	if (!view) {
		uint32_t store = store_address((uintptr_t)area), at;
		struct view new = {.area = area, .next = views};
		int mapped = store && (places(&new, store, NEIGHBOURS) || places(&new, store, 0)) &&
			     copied(area, new.offsets);
		for (at = 0; mapped && at < new.bytes; at += SLOT_BYTES)
			mapped = copied(area, new.pointers + at);
		if (mapped && (view = malloc(sizeof *view))) {
			*view = new;
			views = view;
		}
	}
	if (view)
		result = wide(view->offsets);
	pthread_mutex_unlock(&lock);
	return result;
}

void *__narrow_spe_ls_area_get(void *context)
{
	void *area = spe_ls_area_get(context);
	return area && (uintptr_t)area != UINTPTR_MAX ? view_of(area) : area;
}

int __narrow_spe_context_destroy(void *context)
{
	void *area = views ? spe_ls_area_get(context) : 0;
	int result = spe_context_destroy(context);
	struct view **at, *view = 0;
	if (result)
		return result;
	pthread_mutex_lock(&lock);
	for (at = &views; *at && (*at)->area != area; at = &(*at)->next)
		;
	if (*at) {
		view = *at;
		*at = view->next;
		munmap(wide(view->offsets), STORE_BYTES);
		munmap(wide(view->pointers), view->bytes);
	}
	pthread_mutex_unlock(&lock);
	free(view);
	return 0;
}

/* Callbacks get the store's area. One function for each number, since a handler is not told its own. */
enum { CALLBACKS = 256 };

typedef int handler_t(void *area, unsigned int address);
static handler_t *handlers[CALLBACKS];

extern int spe_callback_handler_register(void *handler, unsigned int number, unsigned int mode);
extern void *spe_callback_handler_query(unsigned int number);

static int called(int number, void *area, unsigned int address)
{
	return handlers[number](view_of(area), address);
}

#define CALLS_1(n) \
	static int call_##n(void *area, unsigned int address) { return called(0x##n, area, address); }
#define CALLS_16(n) \
	CALLS_1(n##0) CALLS_1(n##1) CALLS_1(n##2) CALLS_1(n##3) CALLS_1(n##4) CALLS_1(n##5) CALLS_1(n##6) \
	CALLS_1(n##7) CALLS_1(n##8) CALLS_1(n##9) CALLS_1(n##a) CALLS_1(n##b) CALLS_1(n##c) CALLS_1(n##d) \
	CALLS_1(n##e) CALLS_1(n##f)
#define NAMES_16(n) \
	call_##n##0, call_##n##1, call_##n##2, call_##n##3, call_##n##4, call_##n##5, call_##n##6, \
	call_##n##7, call_##n##8, call_##n##9, call_##n##a, call_##n##b, call_##n##c, call_##n##d, \
	call_##n##e, call_##n##f
CALLS_16(0) CALLS_16(1) CALLS_16(2) CALLS_16(3) CALLS_16(4) CALLS_16(5) CALLS_16(6) CALLS_16(7)
CALLS_16(8) CALLS_16(9) CALLS_16(a) CALLS_16(b) CALLS_16(c) CALLS_16(d) CALLS_16(e) CALLS_16(f)
static handler_t *const calls[CALLBACKS] = {
	NAMES_16(0), NAMES_16(1), NAMES_16(2), NAMES_16(3), NAMES_16(4), NAMES_16(5), NAMES_16(6), NAMES_16(7),
	NAMES_16(8), NAMES_16(9), NAMES_16(a), NAMES_16(b), NAMES_16(c), NAMES_16(d), NAMES_16(e), NAMES_16(f),
};

int __narrow_spe_callback_handler_register(handler_t *handler, unsigned int number, unsigned int mode)
{
	int result;
	if (!handler || number >= CALLBACKS)
		return spe_callback_handler_register(handler, number, mode);
	result = spe_callback_handler_register(calls[number], number, mode);
	if (!result)
		handlers[number] = handler;
	return result;
}

void *__narrow_spe_callback_handler_query(unsigned int number)
{
	void *found = spe_callback_handler_query(number);
	return found && number < CALLBACKS && handlers[number] ? handlers[number] : found;
}

/* The clock of spu_timer.h: 64 bits that count up, by the decrementer's 32 that count down.
 *
 * Must stay true: a timer's function is called outside of the update, so that it may use the clock and
 * the timers itself.
 */
#include <spu_timer.h>
#include "call.h"

enum { WRITE_DECREMENTER = 7, READ_DECREMENTER = 8 };
enum state { FREE, STOPPED, ACTIVE };

static unsigned running, last;
static uint64_t clock;
static struct timer {
	enum state state;
	int interval;
	uint64_t due;
	void (*function)(int);
} timers[SPU_TIMER_NTIMERS];

static void update(void)
{
	unsigned now;
	if (!running)
		return;
	now = (unsigned)__sidecore_call(GATE_READ, READ_DECREMENTER, 0, 0, 0);
	clock += last - now;
	last = now;
}

/* Calls the functions of timers that are due, each once. */
static void look(void)
{
	static int inside;
	int id;
	update();
	if (inside)
		return;
	inside = 1;
	for (id = 0; id < SPU_TIMER_NTIMERS; id++)
		if (timers[id].state == ACTIVE && running && clock >= timers[id].due) {
			timers[id].due = clock + (unsigned)timers[id].interval;
			timers[id].function(id);
		}
	inside = 0;
}

void spu_clock_start(void)
{
	if (running++)
		return;
	clock = 0;
	last = ~0u;
	__sidecore_call(GATE_WRITE, WRITE_DECREMENTER, last, 0, 0);
}

int spu_clock_stop(void)
{
	int id;
	if (!running)
		return SPU_CLOCK_ERR_NOT_RUNNING;
	if (running > 1) {
		running--;
		return SPU_CLOCK_ERR_STILL_RUNNING;
	}
	for (id = 0; id < SPU_TIMER_NTIMERS; id++)
		if (timers[id].state == ACTIVE)
			return SPU_CLOCK_ERR_TIMERS_ACTIVE;
	update();
	running = 0;
	return 0;
}

uint64_t spu_clock_read(void)
{
	look();
	return clock;
}

static int exists(int id)
{
	return id >= 0 && id < SPU_TIMER_NTIMERS;
}

int spu_timer_alloc(int interval, void (*function)(int))
{
	int id;
	if (interval < SPU_TIMER_MIN_INTERVAL || !function)
		return SPU_TIMER_ERR_INVALID_PARM;
	for (id = 0; id < SPU_TIMER_NTIMERS; id++)
		if (timers[id].state == FREE) {
			timers[id] = (struct timer){ STOPPED, interval, 0, function };
			return id;
		}
	return SPU_TIMER_ERR_NONE_FREE;
}

int spu_timer_free(int id)
{
	if (!exists(id))
		return SPU_TIMER_ERR_INVALID_ID;
	if (timers[id].state == FREE)
		return SPU_TIMER_ERR_FREE;
	if (timers[id].state == ACTIVE)
		return SPU_TIMER_ERR_ACTIVE;
	timers[id].state = FREE;
	return 0;
}

int spu_timer_start(int id)
{
	if (!exists(id))
		return SPU_TIMER_ERR_INVALID_ID;
	if (timers[id].state == FREE)
		return SPU_TIMER_ERR_FREE;
	if (timers[id].state == ACTIVE)
		return SPU_TIMER_ERR_ACTIVE;
	if (!running)
		return SPU_TIMER_ERR_NOCLOCK;
	look();
	timers[id].state = ACTIVE;
	timers[id].due = clock + (unsigned)timers[id].interval;
	return 0;
}

int spu_timer_stop(int id)
{
	if (!exists(id))
		return SPU_TIMER_ERR_INVALID_ID;
	if (timers[id].state != ACTIVE)
		return SPU_TIMER_ERR_NOT_ACTIVE;
	if (!running)
		return SPU_TIMER_ERR_NOCLOCK;
	look();
	timers[id].state = STOPPED;
	return 0;
}

unsigned spu_timebase(void)
{
	return 79800000;
}

/* Interrupts do not happen, so there is nothing to hand on. */
void spu_slih_register(unsigned mask, unsigned (*handler)(unsigned))
{
	(void)mask;
	(void)handler;
}

unsigned spu_clock_slih(unsigned mask)
{
	enum { DECREMENTER_EVENT = 0x20 };
	look();
	return mask & ~DECREMENTER_EVENT;
}

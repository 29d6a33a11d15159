/* The clock of spu_timer.h: 64 bits that count up, by the decrementer's 32 that count down. The decrementer
 * is set to pass zero, which interrupts, when the next timer is due.
 *
 * Must stay true: a timer's function is called outside of the update, so that it may use the clock and
 * the timers itself; interrupts are disabled while the clock's words change.
 */
#include <spu_timer.h>
#include "call.h"

extern void __sidecore_ienable(void);

enum { WRITE_MASK = 1, WRITE_DECREMENTER = 7, READ_DECREMENTER = 8, READ_MASK = 11 };
enum { DECREMENTER_EVENT = 0x20 };
/* The decrementer's longest way: half a turn, so that a late look loses nothing. */
static const u64 FAR = 0x7fffffff;
enum state { FREE, STOPPED, ACTIVE };

static unsigned running, last;
static uint64_t clock;
static struct timer {
	enum state state;
	int interval;
	uint64_t due;
	void (*function)(int);
} timers[SPU_TIMER_NTIMERS];

static u32 hold(void) { return (u32)__sidecore_call(GATE_INTERRUPTS, 0, 0, 0, 0); }
static void release(u32 held)
{
	if (held)
		__sidecore_call(GATE_INTERRUPTS, held, 0, 0, 0);
}

static void update(void)
{
	unsigned now;
	if (!running)
		return;
	now = (unsigned)__sidecore_call(GATE_READ, READ_DECREMENTER, 0, 0, 0);
	clock += last - now;
	last = now;
}

/* Sets the decrementer for the timer that is due next. */
static void arm(void)
{
	u64 next = FAR;
	int id;
	update();
	if (!running)
		return;
	for (id = 0; id < SPU_TIMER_NTIMERS; id++)
		if (timers[id].state == ACTIVE) {
			u64 left = timers[id].due > clock ? timers[id].due - clock : 1;
			next = left < next ? left : next;
		}
	last = (unsigned)next;
	__sidecore_call(GATE_WRITE, WRITE_DECREMENTER, last, 0, 0);
}

static void event(int enable)
{
	u32 mask = (u32)__sidecore_call(GATE_READ, READ_MASK, 0, 0, 0);
	mask = enable ? mask | DECREMENTER_EVENT : mask & ~DECREMENTER_EVENT;
	__sidecore_call(GATE_WRITE, WRITE_MASK, mask, 0, 0);
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
	last = (unsigned)__sidecore_call(GATE_READ, READ_DECREMENTER, 0, 0, 0);
	arm();
	event(1);
	__sidecore_ienable();
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
	hold();
	event(0);
	running = 0;
	clock = 0;
	return 0;
}

uint64_t spu_clock_read(void)
{
	u32 held = hold();
	u64 now;
	look();
	now = clock;
	release(held);
	return now;
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
	u32 held;
	if (!exists(id))
		return SPU_TIMER_ERR_INVALID_ID;
	if (timers[id].state == FREE)
		return SPU_TIMER_ERR_FREE;
	if (timers[id].state == ACTIVE)
		return SPU_TIMER_ERR_ACTIVE;
	if (!running)
		return SPU_TIMER_ERR_NOCLOCK;
	held = hold();
	look();
	timers[id].state = ACTIVE;
	timers[id].due = clock + (unsigned)timers[id].interval;
	arm();
	release(held);
	return 0;
}

int spu_timer_stop(int id)
{
	u32 held;
	if (!exists(id))
		return SPU_TIMER_ERR_INVALID_ID;
	if (timers[id].state != ACTIVE)
		return SPU_TIMER_ERR_NOT_ACTIVE;
	if (!running)
		return SPU_TIMER_ERR_NOCLOCK;
	held = hold();
	look();
	timers[id].state = STOPPED;
	release(held);
	return 0;
}

unsigned spu_timebase(void)
{
	return 79800000;
}

unsigned spu_clock_slih(unsigned mask)
{
	look();
	arm();
	return mask & ~DECREMENTER_EVENT;
}

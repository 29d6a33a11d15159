/* The SPU's clock and timers, as libspu_timer has them.
 *
 * The clock runs by interrupts, as there, if spu_clock_slih is registered; a timer's function is called
 * by them, when the clock is read, and when a timer is started or stopped.
 */
#ifndef _SPU_TIMER_H_
#define _SPU_TIMER_H_

#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define SPU_TIMER_NTIMERS 4
#define SPU_TIMER_MIN_INTERVAL 100

#define SPU_CLOCK_ERR_NOT_RUNNING -2
#define SPU_CLOCK_ERR_STILL_RUNNING -3
#define SPU_CLOCK_ERR_TIMERS_ACTIVE -4

#define SPU_TIMER_ERR_INVALID_PARM -10
#define SPU_TIMER_ERR_NONE_FREE -11
#define SPU_TIMER_ERR_INVALID_ID -12
#define SPU_TIMER_ERR_ACTIVE -13
#define SPU_TIMER_ERR_NOT_ACTIVE -14
#define SPU_TIMER_ERR_NOCLOCK -15
#define SPU_TIMER_ERR_FREE -16
#define SPU_TIMER_ERR_NOT_STOPPED -17

extern void spu_clock_start(void);
extern int spu_clock_stop(void);
extern uint64_t spu_clock_read(void);
extern int spu_timer_alloc(int interval, void (*function)(int));
extern int spu_timer_free(int id);
extern int spu_timer_start(int id);
extern int spu_timer_stop(int id);
extern unsigned spu_timebase(void);
extern void spu_slih_register(unsigned mask, unsigned (*handler)(unsigned));
extern unsigned spu_clock_slih(unsigned mask);

#ifdef __cplusplus
}
#endif
#endif

/* libspe 1.x over libspe2: a thread of the SPE is a context with a thread of the host that runs it.
 *
 * Differences: a full inbound mailbox blocks spe_write_in_mbox; spe_kill fails with ENOSYS; scheduling
 * classes, priorities and affinities are kept and have no effect; events are looked for by polling.
 */
#ifndef SIDECORE_LIBSPE_H
#define SIDECORE_LIBSPE_H

#include <errno.h>
#include <libspe2.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sidecore_spe1_thread *speid_t;
typedef struct sidecore_spe1_group *spe_gid_t;

#define SPE_DEF_GRP ((spe_gid_t)0)
#define SPE_USER_REGS 0x00000002
#define SPE_MIN_PRIORITY 1
#define SPE_MAX_PRIORITY 99

/* Events of spe_get_event. */
#define SPE_EVENT_MAILBOX 0x0001
#define SPE_EVENT_STOP 0x0002
#define SPE_EVENT_DMA_ALIGNMENT 0x0008
#define SPE_EVENT_SPE_ERROR 0x0010
#define SPE_EVENT_SPE_DATA_SEGMENT 0x0020
#define SPE_EVENT_SPE_DATA_STORAGE 0x0040
#define SPE_EVENT_SPE_TRAPPED 0x0080
#define SPE_EVENT_THREAD_EXIT 0x0100
#define SPE_EVENT_ERR 0x0200
#define SPE_EVENT_NVAL 0x0400
#define SPE_EVENT_INVALID_DMA_CMD 0x0800

struct spe_event {
	spe_gid_t gid;
	int events;
	int revents;
	speid_t speid;
	unsigned long data;
};

enum { SIDECORE_SPE1_THREADS_MAX = 256 };

struct sidecore_spe1_group {
	int policy, priority;
	pthread_mutex_t lock;
	speid_t threads[SIDECORE_SPE1_THREADS_MAX];
};

struct sidecore_spe1_thread {
	spe_context_ptr_t context;
	pthread_t thread;
	spe_gid_t group;
	void *argp, *envp;
	unsigned long mask;
	unsigned int run_flags;
	spe_stop_info_t stop;
	/* 1 once it has ended; the rest is then its waiter's. */
	int ended, told;
};

static __inline__ spe_gid_t spe_create_group(int policy, int priority, int use_events)
{
	spe_gid_t group = (spe_gid_t)calloc(1, sizeof *group);
	(void)use_events;
	if (group) {
		group->policy = policy;
		group->priority = priority;
		pthread_mutex_init(&group->lock, 0);
	}
	return group;
}

static __inline__ int spe_destroy_group(spe_gid_t group)
{
	if (!group) {
		errno = ESRCH;
		return -1;
	}
	free(group);
	return 0;
}

static __inline__ int spe_count_physical_spes(void)
{
	return spe_cpu_info_get(SPE_COUNT_PHYSICAL_SPES, -1);
}

static __inline__ int spe_group_max(spe_gid_t group)
{
	(void)group;
	return spe_cpu_info_get(SPE_COUNT_USABLE_SPES, -1);
}

static __inline__ int spe_get_priority(spe_gid_t group) { return group ? group->priority : 0; }
static __inline__ int spe_get_policy(spe_gid_t group) { return group ? group->policy : SCHED_OTHER; }
static __inline__ int spe_set_priority(spe_gid_t group, int priority)
{
	if (group)
		group->priority = priority;
	return 0;
}

/* Puts a thread into a place of its group's, or takes it out; -1 where there is none. */
static __inline__ int sidecore_spe1_place(spe_gid_t group, speid_t old, speid_t thread)
{
	int index, found = -1;
	if (!group)
		return 0;
	pthread_mutex_lock(&group->lock);
	for (index = 0; index < SIDECORE_SPE1_THREADS_MAX && found; index++)
		if (group->threads[index] == old) {
			group->threads[index] = thread;
			found = 0;
		}
	pthread_mutex_unlock(&group->lock);
	return found;
}

/* Threads of a group: written to `ids` if that is given; their number. */
static __inline__ int spe_get_threads(spe_gid_t group, speid_t *ids)
{
	int index, count = 0;
	if (!group)
		return 0;
	pthread_mutex_lock(&group->lock);
	for (index = 0; index < SIDECORE_SPE1_THREADS_MAX; index++)
		if (group->threads[index]) {
			if (ids)
				ids[count] = group->threads[index];
			count++;
		}
	pthread_mutex_unlock(&group->lock);
	return count;
}

static __inline__ void *sidecore_spe1_run(void *of)
{
	speid_t own = (speid_t)of;
	unsigned int entry = SPE_DEFAULT_ENTRY;
	spe_context_run(own->context, &entry, own->run_flags, own->argp, own->envp, &own->stop);
	__atomic_store_n(&own->ended, 1, __ATOMIC_RELEASE);
	return 0;
}

static __inline__ speid_t spe_create_thread(spe_gid_t group, spe_program_handle_t *program, void *argp,
	void *envp, unsigned long mask, int flags)
{
	int number;
	speid_t own = (speid_t)calloc(1, sizeof *own);
	if (!own)
		return 0;
	own->context = spe_context_create(flags & (SPE_CFG_SIGNOTIFY1_OR | SPE_CFG_SIGNOTIFY2_OR | SPE_MAP_PS),
		0);
	if (!own->context) {
		free(own);
		return 0;
	}
	own->argp = argp;
	own->envp = envp;
	own->group = group;
	own->mask = mask;
	own->run_flags = flags & SPE_USER_REGS ? SPE_RUN_USER_REGS : 0;
	if (spe_program_load(own->context, program))
		number = errno;
	else if (sidecore_spe1_place(group, 0, own))
		number = EAGAIN;
	else if ((number = pthread_create(&own->thread, 0, sidecore_spe1_run, own)) != 0)
		sidecore_spe1_place(group, own, 0);
	if (number) {
		spe_context_destroy(own->context);
		free(own);
		errno = number;
		return 0;
	}
	return own;
}

/* Status as waitpid's: exit codes, stops with the lower byte of their code, faults as signals. */
static __inline__ int sidecore_spe1_status(const spe_stop_info_t *stop)
{
	switch (stop->stop_reason) {
	case SPE_EXIT:
		return (stop->result.spe_exit_code & 0xff) << 8;
	case SPE_STOP_AND_SIGNAL:
		return (stop->result.spe_signal_code & 0xff) << 8 | 0x7f;
	case SPE_RUNTIME_ERROR:
		return SIGILL;
	case SPE_RUNTIME_EXCEPTION:
		return SIGBUS;
	default:
		return SIGSEGV;
	}
}

/* Waits for a thread's end and frees it; with WNOHANG, 1 is returned where it runs. */
static __inline__ int spe_wait(speid_t own, int *status, int options)
{
	if (!own) {
		errno = ESRCH;
		return -1;
	}
	if (options & WNOHANG && !__atomic_load_n(&own->ended, __ATOMIC_ACQUIRE))
		return 1;
	pthread_join(own->thread, 0);
	if (status)
		*status = sidecore_spe1_status(&own->stop);
	sidecore_spe1_place(own->group, own, 0);
	spe_context_destroy(own->context);
	free(own);
	return 0;
}

static __inline__ int spe_kill(speid_t own, int signal)
{
	(void)own;
	(void)signal;
	errno = ENOSYS;
	return -1;
}

static __inline__ spe_gid_t spe_get_group(speid_t own) { return own ? own->group : 0; }
static __inline__ int spe_get_affinity(speid_t own, unsigned long *mask)
{
	*mask = own ? own->mask : 0;
	return own ? 0 : -1;
}
static __inline__ int spe_set_affinity(speid_t own, unsigned long mask)
{
	if (own)
		own->mask = mask;
	return own ? 0 : -1;
}

static __inline__ spe_context_ptr_t sidecore_spe1_context(speid_t own) { return own ? own->context : 0; }
static __inline__ void *spe_get_ls(speid_t own) { return spe_ls_area_get(sidecore_spe1_context(own)); }
static __inline__ void *spe_get_ps_area(speid_t own, enum ps_area area)
{
	return spe_ps_area_get(sidecore_spe1_context(own), area);
}
static __inline__ spe_program_handle_t *spe_open_image(const char *name) { return spe_image_open(name); }
static __inline__ int spe_close_image(spe_program_handle_t *image) { return spe_image_close(image); }

static __inline__ int spe_write_in_mbox(speid_t own, unsigned int word)
{
	int done = spe_in_mbox_write(sidecore_spe1_context(own), &word, 1, SPE_MBOX_ALL_BLOCKING);
	return done == 1 ? 0 : -1;
}
static __inline__ int spe_stat_in_mbox(speid_t own)
{
	return spe_in_mbox_status(sidecore_spe1_context(own));
}
static __inline__ unsigned int spe_read_out_mbox(speid_t own)
{
	unsigned int word;
	return spe_out_mbox_read(sidecore_spe1_context(own), &word, 1) == 1 ? word : (unsigned int)-1;
}
static __inline__ int spe_stat_out_mbox(speid_t own)
{
	return spe_out_mbox_status(sidecore_spe1_context(own));
}
static __inline__ int spe_stat_out_intr_mbox(speid_t own)
{
	return spe_out_intr_mbox_status(sidecore_spe1_context(own));
}
static __inline__ int spe_write_signal(speid_t own, unsigned int which, unsigned int value)
{
	return spe_signal_write(sidecore_spe1_context(own), which, value);
}

#define SIDECORE_SPE1_MFC(name) \
	static __inline__ int spe_mfc_##name(speid_t own, unsigned int ls, void *ea, unsigned int size, \
		unsigned int tag, unsigned int tid, unsigned int rid) \
	{ \
		return spe_mfcio_##name(sidecore_spe1_context(own), ls, ea, size, tag, tid, rid); \
	}
SIDECORE_SPE1_MFC(put)
SIDECORE_SPE1_MFC(putb)
SIDECORE_SPE1_MFC(putf)
SIDECORE_SPE1_MFC(get)
SIDECORE_SPE1_MFC(getb)
SIDECORE_SPE1_MFC(getf)
#undef SIDECORE_SPE1_MFC

static __inline__ int sidecore_spe1_tags(speid_t own, unsigned int mask, unsigned int behaviour)
{
	unsigned int status = 0;
	int done = spe_mfcio_tag_status_read(sidecore_spe1_context(own), mask, behaviour, &status);
	return done < 0 ? -1 : (int)status;
}
static __inline__ int spe_mfc_read_tag_status_all(speid_t own, unsigned int mask)
{
	return sidecore_spe1_tags(own, mask, SPE_TAG_ALL);
}
static __inline__ int spe_mfc_read_tag_status_any(speid_t own, unsigned int mask)
{
	return sidecore_spe1_tags(own, mask, SPE_TAG_ANY);
}
static __inline__ int spe_mfc_read_tag_status_immediate(speid_t own, unsigned int mask)
{
	return sidecore_spe1_tags(own, mask, SPE_TAG_IMMEDIATE);
}

/* What of one thread's events has come. */
static __inline__ int sidecore_spe1_event(speid_t own, struct spe_event *event)
{
	unsigned int word;
	int reason = own->stop.stop_reason;
	if (event->events & SPE_EVENT_MAILBOX
	    && spe_out_intr_mbox_read(own->context, &word, 1, SPE_MBOX_ANY_NONBLOCKING) == 1) {
		event->revents = SPE_EVENT_MAILBOX;
		event->data = word;
	} else if (__atomic_load_n(&own->ended, __ATOMIC_ACQUIRE) && !own->told) {
		if (reason == SPE_EXIT)
			event->revents = SPE_EVENT_THREAD_EXIT;
		else if (reason == SPE_STOP_AND_SIGNAL)
			event->revents = SPE_EVENT_STOP;
		else
			event->revents = SPE_EVENT_SPE_ERROR;
		event->data = reason == SPE_EXIT ? own->stop.result.spe_exit_code
						 : own->stop.result.spe_signal_code;
		if (!(event->events & event->revents))
			event->revents = 0;
		else
			own->told = 1;
	}
	event->speid = own;
	return event->revents != 0;
}

/* Waits for events of groups, at most `timeout` milliseconds (-1: for ever); how many came. */
static __inline__ int spe_get_event(struct spe_event *events, int count, int timeout)
{
	enum { LOOKS_A_MILLISECOND = 5 };
	long looks = (long)timeout * LOOKS_A_MILLISECOND;
	for (;;) {
		int index, place, came = 0;
		for (index = 0; index < count; index++) {
			spe_gid_t group = events[index].gid;
			events[index].revents = 0;
			for (place = 0; group && place < SIDECORE_SPE1_THREADS_MAX; place++) {
				speid_t own = group->threads[place];
				if (own && sidecore_spe1_event(own, &events[index])) {
					came++;
					break;
				}
			}
		}
		if (came || (timeout >= 0 && looks-- <= 0))
			return came;
		usleep(1000 / LOOKS_A_MILLISECOND);
	}
}

#ifdef __cplusplus
}
#endif
#endif

/* A semaphore of the C library of this machine, for code whose pointers have 4 bytes. */
#ifndef _SEMAPHORE_H
#error "include <semaphore.h>"
#endif

#define SEM_FAILED ((sem_t *)0)
typedef union {
	char __size[32];
	long long __align;
} sem_t;

/* Types of threads, which an SPU program gets by this header alone: it may have some of their names itself. */
#ifndef SIDECORE_PTHREAD_H
#define SIDECORE_PTHREAD_H
#include <features.h>
#undef _BITS_PTHREADTYPES_COMMON_H
#include <bits/pthreadtypes.h>
#endif
#include_next <pthread.h>

/* The part of libsim that programs use away from the simulator. */
#ifndef _LIBSIM_H_
#define _LIBSIM_H_
#include <profile.h>
#include <sim_printf.h>
#endif

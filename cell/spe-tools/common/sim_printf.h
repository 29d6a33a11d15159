/* Output by the simulator: the program's own here. */
#ifndef _SIM_PRINTF_H_
#define _SIM_PRINTF_H_
#include <stdio.h>
#define sim_printf printf
#endif

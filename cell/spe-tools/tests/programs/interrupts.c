/* Handlers of interrupts: the section's (OWN), or the library's. */
#include <spu_mfcio.h>
#include <spu_timer.h>
#include <stdio.h>

static volatile int seen;

#ifdef OWN
void handler(void) __attribute__((section(".interrupt")));
void handler(void)
{
	char room[300];
	sprintf(room, "%d", seen);
	spu_write_event_ack(MFC_DECREMENTER_EVENT);
	seen++;
	printf("handler %s\n", room);
	asm("iret");
}
#else
static unsigned int second_level(unsigned int events)
{
	seen++;
	printf("events %x\n", events);
	return events & ~MFC_DECREMENTER_EVENT;
}
#endif

int main(void)
{
	int each;
	float kept = 1.5f;
#ifndef OWN
	spu_slih_register(MFC_DECREMENTER_EVENT, second_level);
#endif
	spu_write_event_mask(MFC_DECREMENTER_EVENT);
	for (each = 0; each < 3; each++) {
		spu_ienable();
		spu_write_decrementer(1);
		kept *= 2;
	}
	spu_idisable();
	spu_write_decrementer(1);
	printf("%d %g\n", seen, kept);
	return 0;
}

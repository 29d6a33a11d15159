/* MFC rules that need no second party; returns the number of the check that failed. */
#include "spu.h"

#define CHECK(number, condition) do { if (!(condition)) return number; } while (0)
#define PUTL 0x24
#define GETL 0x44
#define GETF 0x42
#define GETLLAR 0xd0
#define PUTLLC 0xb4
#define PUTLLUC 0xb0
#define PUTQLLUC 0xb8
#define BARRIER 0xc0

struct element {
	u32 size, low;
};

static unsigned char buffer[16384] __attribute__((aligned(128)));
static u32 line[32] __attribute__((aligned(128)));
static struct element list[8] __attribute__((aligned(8)));

static int lists(u64 ea)
{
	u32 low = (u32)ea, high = ea >> 32;
	/* Elements keep their address's place in a quadword; each begins at a new one. */
	list[0] = (struct element){ 16, low };
	list[1] = (struct element){ 4, low + 36 };
	list[2] = (struct element){ 32, low + 64 };
	MFC(buffer, (u64)high << 32 | (u32)list, 24, 2, GETL);
	CHECK(20, wait_tags(1 << 2) == 1 << 2);
	for (int i = 0; i < 16; i++)
		CHECK(21, buffer[i] == i);
	for (int i = 0; i < 4; i++)
		CHECK(22, buffer[16 + 4 + i] == 36 + i);
	for (int i = 0; i < 32; i++)
		CHECK(23, buffer[32 + i] == 64 + i);
	/* The SDK's bit fields: notify in bit 0, the size above bit 15. */
	list[0] = (struct element){ 16 << 16, low + 128 };
	MFC(buffer, (u64)high << 32 | (u32)list, 8, 2, GETL);
	CHECK(24, buffer[0] == 128 && buffer[15] == 143);

	/* Stall and notify: what is behind waits for the acknowledgement, a fenced command too. */
	list[0] = (struct element){ 16 | 1U << 31, low };
	list[1] = (struct element){ 16, low + 16 };
	memset(buffer, 0, 64);
	CHECK(25, COUNT(25) == 0);
	MFC(buffer, (u64)high << 32 | (u32)list, 16, 5, GETL);
	MFC(buffer + 32, ea + 32, 16, 5, GETF);
	MFC(buffer + 48, ea + 48, 16, 6, GET);
	CHECK(26, COUNT(25) == 1);
	CHECK(27, COUNT(21) == 14);
	CHECK(28, buffer[1] == 1 && buffer[17] == 0 && buffer[33] == 0 && buffer[49] == 49);
	WRITE(22, 3 << 5);
	WRITE(23, 1);
	CHECK(29, READ(24) == 1 << 6);
	WRITE(23, 2);
	CHECK(30, COUNT(24) == 0);
	WRITE(23, 0);
	CHECK(31, READ(24) == 1 << 6);
	list[1].low = low + 80;
	CHECK(32, READ(25) == 1 << 5);
	WRITE(26, 5);
	CHECK(33, wait_tags(3 << 5) == 3 << 5);
	CHECK(34, buffer[16] == 80 && buffer[33] == 33);
	CHECK(35, COUNT(21) == 16);
	return 0;
}

static int atomics(u64 ea)
{
	for (int i = 0; i < 1000; i++) {
		do {
			MFC(line, ea, 128, 0, GETLLAR);
			CHECK(40, READ(27) == 4);
			line[0]++;
			MFC(line, ea, 128, 0, PUTLLC);
		} while (READ(27));
	}
	MFC(line, ea + 128, 128, 0, GETLLAR);
	READ(27);
	/* Our own put takes our reservation away. */
	line[1] = 7;
	MFC(line, ea + 128, 128, 0, PUTLLUC);
	CHECK(41, READ(27) == 2);
	MFC(line, ea + 128, 128, 0, PUTLLC);
	CHECK(42, READ(27) == 1);
	line[1] = 9;
	MFC(line, ea + 128, 128, 4, PUTQLLUC);
	wait_tags(1 << 4);
	CHECK(43, COUNT(27) == 0);
	/* Without a reservation nothing is put. */
	MFC(line, ea + 128, 128, 0, PUTLLC);
	CHECK(44, READ(27) == 1);
	return 0;
}

static int events(u64 ea)
{
	/* The decrementer passes zero; its event is seen masked and unmasked. */
	WRITE(2, 0xffffffff);
	WRITE(1, 0x20);
	CHECK(50, COUNT(0) == 0);
	WRITE(7, 79800 * 3);
	CHECK(51, READ(0) == 0x20);
	CHECK(52, READ(8) > 0xf0000000);
	CHECK(53, COUNT(0) == 0);
	WRITE(2, 0x20);
	/* A tag group that is done raises its event. */
	WRITE(1, 0x1);
	MFC(buffer, ea, 16, 9, GET);
	WRITE(22, 1 << 9);
	WRITE(23, 2);
	CHECK(54, READ(0) == 1);
	CHECK(55, READ(24) == 1 << 9);
	WRITE(2, 0x1);
	/* A reservation that is lost to our own unconditional put. */
	MFC(line, ea + 128, 128, 0, GETLLAR);
	READ(27);
	WRITE(1, 0x400);
	CHECK(56, COUNT(0) == 0);
	MFC(line, ea + 128, 128, 0, PUTLLUC);
	READ(27);
	CHECK(57, READ(0) == 0x400);
	WRITE(2, 0x400);
	WRITE(9, 1);
	CHECK(58, COUNT(9) == 1);
	WRITE(1, 0x1000);
	CHECK(59, READ(0) == 0x1000);
	WRITE(1, 0);
	CHECK(60, READ(11) == 0);
	WRITE(14, 1234);
	CHECK(61, READ(15) == 1234);
	return 0;
}

/* The address of another program's store, with that of a variable of ours. */
static int other(u64 store)
{
	if (!store) {
		line[0] = 77;
		return 0;
	}
	MFC(buffer, store + (u32)line, 128, 3, GET);
	return wait_tags(1 << 3) == 1 << 3 ? buffer[0] : 1;
}

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	if (!envp)
		return other(argp);
	int failed;
	u32 sizes[] = { 1, 2, 4, 8, 16, 128, 16384 };
	for (u32 i = 0; i < 7; i++) {
		u32 at = sizes[i] < 16 ? sizes[i] : 0;
		memset(buffer, 0, sizeof buffer);
		MFC(buffer + at, argp + at, sizes[i], 31, GET);
		wait_tags(1U << 31);
		for (u32 byte = 0; byte < sizes[i]; byte++)
			CHECK(1 + i, buffer[at + byte] == (unsigned char)(at + byte));
		CHECK(10, sizes[i] == 16384 || buffer[at + sizes[i]] == 0);
	}
	MFC(buffer, argp, 0, 1, GET);
	MFC(0, 0, 0, 1, BARRIER);
	/* By channels, one word after the other. */
	WRITE(16, (u32)buffer);
	WRITE(17, argp >> 32);
	WRITE(18, (u32)argp + 256 * 5 + 16);
	WRITE(19, 16);
	WRITE(20, 7);
	WRITE(21, GET);
	CHECK(11, wait_tags(1 << 7) == 1 << 7 && READ(12) == 1 << 7 && buffer[3] == 19);
	failed = lists(argp);
	if (!failed)
		failed = atomics(envp);
	if (!failed)
		failed = events(envp);
	return failed;
}

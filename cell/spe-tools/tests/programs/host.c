/* A host for images of the tests: loads one into a store, relocates it, and answers its gate with a few
 * operations. Numbers behind the image's name are its mailbox.
 */
#include <elf.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STORE_BYTES = 0x40000, STACK_BYTES = 1 << 20, MAILBOX_MAX = 16 };

static char *store;
static jmp_buf ended;
static int status;
static uint32_t channels[128], mailbox[MAILBOX_MAX];
static int mailbox_next;
/* The library's entry while interrupts are enabled, and once one is due. */
static uint64_t enabled;
uint64_t interrupt_entry;
static char stack[STACK_BYTES] __attribute__((aligned(16)));
uint64_t stack_top;

static FILE *streams(uint32_t number)
{
	return number == 1 ? stdin : number == 2 ? stdout : stderr;
}

static void callback(uint32_t code, uint32_t block)
{
	uint32_t word = *(uint32_t *)(store + (block & (STORE_BYTES - 1)));
	uint32_t(*slots)[4] = (void *)(store + (word & (STORE_BYTES - 1)));
	char *text = store + (slots[0][0] & (STORE_BYTES - 1));
	if (code != 0x2100) {
		printf("stop %x\n", code);
		return;
	}
	switch (word >> 24) {
	case 5:
		slots[0][0] = fflush(0);
		break;
	case 11:
		slots[0][0] = fputc(slots[0][0], streams(slots[1][0]));
		break;
	case 12:
		slots[0][0] = fputs(text, streams(slots[1][0]));
		break;
	case 18:
		slots[0][0] = fwrite(text, slots[1][0], slots[2][0], streams(slots[3][0]));
		break;
	case 25:
		slots[0][0] = puts(text);
		break;
	default:
		printf("callback %u\n", word >> 24);
	}
	slots[0][3] = 0;
}

__attribute__((used)) uint64_t answer(uint32_t operation, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	char *place = store + (a & (STORE_BYTES - 1));
	switch (operation) {
	case 1:
		if (a == 29)
			return mailbox[mailbox_next++ % MAILBOX_MAX];
		/* The decrementer, a thousand ticks later at each look. */
		if (a == 8)
			return channels[7] -= 1000;
		return a == 24 ? channels[22] : channels[a & 127];
	case 2:
		channels[a & 127] = b;
		/* The decrementer passes zero at once. */
		if (a == 7 && enabled && channels[1] & 0x20) {
			channels[0] = 0x20;
			interrupt_entry = enabled;
			enabled = 0;
		}
		if (a == 28 || a == 30)
			printf("mailbox %u: %u\n", (unsigned int)a, (unsigned int)b);
		return 0;
	case 3:
		return 1;
	case 4:
		callback(a, b);
		return 0;
	case 5:
		status = a;
		longjmp(ended, 1);
	case 6:
		puts("halt");
		status = 255;
		longjmp(ended, 1);
	case 7:
		if ((d & 0xfc) == 0x40)
			memcpy(place, (void *)b, (uint32_t)c);
		else if ((d & 0xfc) == 0x20)
			memcpy((void *)b, place, (uint32_t)c);
		else if ((d & 0xff) == 0xd0) {
			memcpy(place, (void *)b, 128);
			channels[27] = 4;
		} else if ((d & 0xff) == 0xb4) {
			memcpy((void *)b, place, 128);
			channels[27] = 0;
		} else
			printf("command %x\n", (unsigned int)d & 0xff);
		return 0;
	case 9: {
		uint64_t before = enabled;
		enabled = (uint32_t)a;
		return before;
	}
	}
	return 0;
}

uint64_t gate(void);
__asm__("gate: push %rbp\n mov %rsp, %rbp\n mov stack_top(%rip), %rsp\n call answer\n"
	"mov %rbp, %rsp\n pop %rbp\n cmpq $0, interrupt_entry(%rip)\n jne 1f\n ret\n"
	"1: mov interrupt_entry(%rip), %r11\n movq $0, interrupt_entry(%rip)\n pop %r10\n"
	"lea -136(%rsp), %rsp\n mov %r10, (%rsp)\n jmp *%r11\n");
void enter(uint64_t id, uint64_t argp, uint64_t envp, uint64_t gate, uint64_t registers, uint64_t entry,
	   uint64_t stack);
__asm__("enter: mov 8(%rsp), %rax\n mov %rax, %rsp\n jmp *%r9\n");

int main(int count, char **arguments)
{
	static char image[1 << 20], data[1 << 16] __attribute__((aligned(4096)));
	FILE *file = fopen(arguments[1], "rb");
	Elf32_Ehdr *head = (void *)image;
	Elf32_Phdr *part = (void *)(image + 52);
	Elf32_Rela *moved = 0;
	uint32_t bytes = 0, each;
	int n;
	if (!file || fread(image, 1, sizeof image, file) < sizeof *head || head->e_type != ET_DYN)
		return 3;
	/* Wherever there is room: the heap begins anywhere in the first GiB. */
	store = mmap(0, 2 * STORE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	if (store == MAP_FAILED)
		return 3;
	store = (char *)(((uintptr_t)store + STORE_BYTES - 1) & -(uintptr_t)STORE_BYTES);
	for (n = 0; n < head->e_phnum; n++) {
		Elf32_Dyn *entry = (void *)(store + part[n].p_vaddr);
		if (part[n].p_type == PT_LOAD)
			memcpy(store + part[n].p_vaddr, image + part[n].p_offset, part[n].p_filesz);
		for (; part[n].p_type == PT_DYNAMIC && entry->d_tag; entry++) {
			if (entry->d_tag == DT_RELA)
				moved = (void *)(store + entry->d_un.d_ptr);
			if (entry->d_tag == DT_RELASZ)
				bytes = entry->d_un.d_val;
		}
	}
	for (each = 0; each < bytes / sizeof *moved; each++) {
		if (ELF32_R_TYPE(moved[each].r_info) != R_X86_64_RELATIVE)
			return 4;
		*(uint32_t *)(store + moved[each].r_offset) = (uintptr_t)store + moved[each].r_addend;
	}
	for (n = 2; n < count && n < MAILBOX_MAX + 2; n++)
		mailbox[n - 2] = strtoul(arguments[n], 0, 0);
	for (n = 0; n < (int)sizeof data; n++)
		data[n] = n;
	stack_top = (uint64_t)(stack + STACK_BYTES);
	if (!setjmp(ended))
		enter(7, (uint64_t)data, 11, (uint64_t)gate, 0, (uint64_t)(store + head->e_entry),
		      (uint64_t)(store + STORE_BYTES - 16));
	fflush(stdout);
	return status;
}

/* An SPU's part of the tour: fetches a block by DMA, adds its squares up, and sends the sum. */
#include <spu_mfcio.h>

static vector float block[1024] __attribute__((aligned(128)));

int main(unsigned long long id, unsigned long long argp)
{
	vector float sum = spu_splats(0.0f);
	int i;
	mfc_get(block, argp, sizeof block, 3, 0, 0);
	mfc_write_tag_mask(1 << 3);
	mfc_read_tag_status_all();
	for (i = 0; i < 1024; i++)
		sum = spu_madd(block[i], block[i], sum);
	spu_write_out_mbox((unsigned int)(spu_extract(sum, 0) + spu_extract(sum, 1)
		+ spu_extract(sum, 2) + spu_extract(sum, 3)));
	return 0;
}

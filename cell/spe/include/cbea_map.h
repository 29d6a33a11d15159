/* Registers of the problem-state areas (Cell Broadband Engine Architecture, chapter 8).
 *
 * SPU_Mbox_Stat is kept up to date. Stores and DMA to a signal register or to SPU_In_Mbox reach the
 * context. A store to MFC_ClassID_CMD does the put or get that the words before it describe;
 * MFC_CMDStatus is then 0, or 1 where it was refused. Prxy_TagStatus has the tags of Prxy_QueryMask.
 * SPU_RunCntl and MFC_MSSync have no effect.
 */
#ifndef SIDECORE_CBEA_MAP_H
#define SIDECORE_CBEA_MAP_H

typedef struct spe_mssync_area {
	unsigned int MFC_MSSync;
} spe_mssync_area_t;

typedef struct spe_mfc_command_area {
	unsigned char reserved_0_3[4];
	unsigned int MFC_LSA;
	unsigned int MFC_EAH;
	unsigned int MFC_EAL;
	unsigned int MFC_Size_Tag;
	union {
		unsigned int MFC_ClassID_CMD;
		unsigned int MFC_CMDStatus;
	};
	unsigned char reserved_18_103[236];
	unsigned int MFC_QStatus;
	unsigned char reserved_108_203[252];
	unsigned int Prxy_QueryType;
	unsigned char reserved_208_21B[20];
	unsigned int Prxy_QueryMask;
	unsigned char reserved_220_22B[12];
	unsigned int Prxy_TagStatus;
} spe_mfc_command_area_t;

typedef struct spe_spu_control_area {
	unsigned char reserved_0_3[4];
	unsigned int SPU_Out_Mbox;
	unsigned char reserved_8_B[4];
	unsigned int SPU_In_Mbox;
	unsigned char reserved_10_13[4];
	unsigned int SPU_Mbox_Stat;
	unsigned char reserved_18_1B[4];
	unsigned int SPU_RunCntl;
	unsigned char reserved_20_23[4];
	unsigned int SPU_Status;
	unsigned char reserved_28_33[12];
	unsigned int SPU_NPC;
} spe_spu_control_area_t;

typedef struct spe_sig_notify_1_area {
	unsigned char reserved_0_B[12];
	unsigned int SPU_Sig_Notify_1;
} spe_sig_notify_1_area_t;

typedef struct spe_sig_notify_2_area {
	unsigned char reserved_0_B[12];
	unsigned int SPU_Sig_Notify_2;
} spe_sig_notify_2_area_t;

#endif

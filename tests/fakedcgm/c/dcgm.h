/* The part of DCGM's binary interface that the fake has, for x86-64 and AArch64 Linux: natural alignment, enums of 4 bytes.
 *
 * Rule 1: a struct stands here with the name, the order and the size that DCGM 4.6 gives it, and the assertion says so;
 *         tests/test_fakedcgm.py compares every offset with a measured description of DCGM where that is at hand.
 * Rule 2: a version is the size with the struct's number in the highest byte: VERSION(struct, number).
 */
#ifndef DCGM_H
#define DCGM_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
#define R(name, number) name = number,
#include "returns.def"
#undef R
} dcgmReturn_t;

typedef uintptr_t dcgmHandle_t, dcgmGpuGrp_t, dcgmFieldGrp_t;

enum { /* entity groups */
    DCGM_FE_NONE, DCGM_FE_GPU, DCGM_FE_VGPU, DCGM_FE_SWITCH, DCGM_FE_GPU_I, DCGM_FE_GPU_CI, DCGM_FE_COUNT = 10,
};
enum { /* what a new group holds */
    DCGM_GROUP_DEFAULT, DCGM_GROUP_EMPTY, DCGM_GROUP_DEFAULT_NVSWITCHES, DCGM_GROUP_DEFAULT_INSTANCES,
    DCGM_GROUP_DEFAULT_COMPUTE_INSTANCES, DCGM_GROUP_DEFAULT_EVERYTHING,
};
enum { /* groups that are always there */
    DCGM_GROUP_ALL_ENTITIES = 0x7ffffffb, DCGM_GROUP_ALL_COMPUTE_INSTANCES, DCGM_GROUP_ALL_INSTANCES,
    DCGM_GROUP_ALL_NVSWITCHES, DCGM_GROUP_ALL_GPUS,
};
enum {
    DCGM_EMBEDDED_HANDLE = 0x7fffffff,
    DCGM_MAX_NUM_DEVICES = 32,
    DCGM_MAX_NUM_GROUPS = 64,
    DCGM_MAX_NUM_FIELD_GROUPS = 64,
    DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP = 128,
    DCGM_GROUP_MAX_ENTITIES = 1024,
    DCGM_MAX_HIERARCHY_INFO = 448,
    DCGM_FI_MAX_FIELDS = 1534,
    DCGM_FV_FLAG_LIVE_DATA = 1,
    DCGM_GEGE_FLAG_ONLY_SUPPORTED = 1,
};
enum { DcgmEntityStatusUnknown, DcgmEntityStatusOk, DcgmEntityStatusLost = 4, DcgmEntityStatusDetached = 7 };
#define DCGM_INT32_BLANK 0x7ffffff0
#define DCGM_INT64_BLANK 0x7ffffffffffffff0
#define DCGM_FP64_BLANK 140737488355328.0

#define VERSION(type, number) ((uint32_t)(sizeof(type) | (uint32_t)(number) << 24))

typedef struct {
    uint32_t entityGroupId, entityId;
} dcgmGroupEntityPair_t;
_Static_assert(sizeof(dcgmGroupEntityPair_t) == 8, "size");

typedef struct {
    uint32_t version, persistAfterDisconnect;
} dcgmConnectV2Params_v1;
_Static_assert(sizeof(dcgmConnectV2Params_v1) == 8, "size");

typedef struct {
    uint32_t version, persistAfterDisconnect, timeoutMs, addressIsUnixSocket;
} dcgmConnectV2Params_v2;
_Static_assert(sizeof(dcgmConnectV2Params_v2) == 16, "size");

typedef struct {
    uint32_t version, persistAfterDisconnect, timeoutMs;
} dcgmConnectV3Params_v1;
_Static_assert(sizeof(dcgmConnectV3Params_v1) == 12, "size");

typedef struct {
    uint32_t version, opMode;
    dcgmHandle_t dcgmHandle;
    const char *logFile;
    uint32_t severity, denyListCount, denyList[10];
} dcgmStartEmbeddedV2Params_v1;
_Static_assert(sizeof(dcgmStartEmbeddedV2Params_v1) == 72, "size");

typedef struct {
    uint32_t version, opMode;
    dcgmHandle_t dcgmHandle;
    const char *logFile;
    uint32_t severity, denyListCount;
    const char *serviceAccount;
    uint32_t denyList[10];
} dcgmStartEmbeddedV2Params_v2;
_Static_assert(sizeof(dcgmStartEmbeddedV2Params_v2) == 80, "size");

typedef struct {
    uint32_t version, opMode;
    dcgmHandle_t dcgmHandle;
    const char *logFile;
    uint32_t severity, denyListCount;
    const char *serviceAccount;
    uint32_t denyList[16];
} dcgmStartEmbeddedV2Params_v3;
_Static_assert(sizeof(dcgmStartEmbeddedV2Params_v3) == 104, "size");

typedef struct {
    uint32_t version;
    char rawBuildInfoString[512];
} dcgmVersionInfo_v2;
_Static_assert(sizeof(dcgmVersionInfo_v2) == 516, "size");

typedef struct {
    int32_t version;
    uint32_t memClock, smClock;
} dcgmClockSet_v1;
typedef struct {
    uint32_t version, count;
    dcgmClockSet_v1 clockSet[256];
} dcgmDeviceSupportedClockSets_v1;
_Static_assert(sizeof(dcgmDeviceSupportedClockSets_v1) == 3080, "size");
typedef struct {
    uint32_t version, slowdownTemp, shutdownTemp;
} dcgmDeviceThermals_v1;
_Static_assert(sizeof(dcgmDeviceThermals_v1) == 12, "size");
typedef struct {
    uint32_t version, curPowerLimit, defaultPowerLimit, enforcedPowerLimit, minPowerLimit, maxPowerLimit;
} dcgmDevicePowerLimits_v1;
_Static_assert(sizeof(dcgmDevicePowerLimits_v1) == 24, "size");
typedef struct {
    uint32_t version;
    char brandName[256], deviceName[256], pciBusId[256], serial[256], uuid[256], vbios[256], inforomImageVersion[256];
    uint32_t pciDeviceId, pciSubSystemId;
    char driverVersion[256];
    uint32_t virtualizationMode;
} dcgmDeviceIdentifiers_v1;
_Static_assert(sizeof(dcgmDeviceIdentifiers_v1) == 2064, "size");
typedef struct {
    uint32_t version, bar1Total, fbTotal, fbUsed, fbFree;
} dcgmDeviceMemoryUsage_v1;
_Static_assert(sizeof(dcgmDeviceMemoryUsage_v1) == 20, "size");
typedef struct {
    uint32_t version, persistenceModeEnabled, migModeEnabled, confidentialComputeMode;
} dcgmDeviceSettings_v2;
_Static_assert(sizeof(dcgmDeviceSettings_v2) == 16, "size");
typedef struct {
    uint32_t version;
    dcgmDeviceSupportedClockSets_v1 clockSets;
    dcgmDeviceThermals_v1 thermalSettings;
    dcgmDevicePowerLimits_v1 powerLimits;
    dcgmDeviceIdentifiers_v1 identifiers;
    dcgmDeviceMemoryUsage_v1 memoryUsage;
    dcgmDeviceSettings_v2 settings;
} dcgmDeviceAttributes_v3;
_Static_assert(sizeof(dcgmDeviceAttributes_v3) == 5220, "size");

typedef struct {
    char gpuUuid[128];
    uint32_t nvmlGpuIndex, nvmlInstanceId, nvmlComputeInstanceId, nvmlMigProfileId, nvmlProfileSlices;
} dcgmMigEntityInfo_t;
_Static_assert(sizeof(dcgmMigEntityInfo_t) == 148, "size");
typedef struct {
    dcgmGroupEntityPair_t entity, parent;
    dcgmMigEntityInfo_t info;
} dcgmMigHierarchyInfo_v2;
_Static_assert(sizeof(dcgmMigHierarchyInfo_v2) == 164, "size");
typedef struct {
    uint32_t version, count;
    dcgmMigHierarchyInfo_v2 entityList[DCGM_MAX_HIERARCHY_INFO];
} dcgmMigHierarchy_v2;
_Static_assert(sizeof(dcgmMigHierarchy_v2) == 73480, "size");

typedef struct { /* DCGM 3 */
    uint32_t version, count;
    char groupName[256];
    dcgmGroupEntityPair_t entityList[64];
} dcgmGroupInfo_v2;
_Static_assert(sizeof(dcgmGroupInfo_v2) == 776, "size");
typedef struct {
    uint32_t version, count;
    char groupName[256];
    dcgmGroupEntityPair_t entityList[DCGM_GROUP_MAX_ENTITIES];
} dcgmGroupInfo_v3;
_Static_assert(sizeof(dcgmGroupInfo_v3) == 8456, "size");

typedef struct {
    uint32_t version, numFieldIds;
    dcgmFieldGrp_t fieldGroupId;
    char fieldGroupName[256];
    uint16_t fieldIds[DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP];
} dcgmFieldGroupInfo_v1;
_Static_assert(sizeof(dcgmFieldGroupInfo_v1) == 528, "size");

typedef union {
    int64_t i64;
    double dbl;
    char str[256];
    char blob[4096];
} FieldValueUnion;
typedef struct {
    uint32_t version;
    uint16_t fieldId, fieldType;
    int32_t status;
    int64_t ts;
    FieldValueUnion value;
} dcgmFieldValue_v1;
_Static_assert(sizeof(dcgmFieldValue_v1) == 4120 && offsetof(dcgmFieldValue_v1, value) == 24, "size");
typedef struct {
    uint32_t version, entityGroupId, entityId;
    uint16_t fieldId, fieldType;
    int32_t status;
    uint32_t unused;
    int64_t ts;
    FieldValueUnion value;
} dcgmFieldValue_v2;
_Static_assert(sizeof(dcgmFieldValue_v2) == 4128 && offsetof(dcgmFieldValue_v2, value) == 32, "size");

typedef int (*dcgmFieldValueEntityEnumeration_f)(uint32_t entityGroupId, uint32_t entityId, dcgmFieldValue_v1 *values,
                                                 int numValues, void *userData);

typedef struct {
    uint16_t majorId, minorId;
    uint32_t numFieldIds;
    uint16_t fieldIds[64];
} dcgmProfMetricGroupInfo_v2;
_Static_assert(sizeof(dcgmProfMetricGroupInfo_v2) == 136, "size");
typedef struct {
    uint32_t version, unused, gpuId, numMetricGroups;
    dcgmProfMetricGroupInfo_v2 metricGroups[10];
} dcgmProfGetMetricGroups_v3;
_Static_assert(sizeof(dcgmProfGetMetricGroups_v3) == 1376, "size");

typedef struct {
    char msg[1024];
    uint32_t code;
} dcgmDiagErrorDetail_t;
_Static_assert(sizeof(dcgmDiagErrorDetail_t) == 1028, "size");
typedef struct {
    uint32_t system, health;
    dcgmDiagErrorDetail_t error;
    dcgmGroupEntityPair_t entityInfo;
} dcgmIncidentInfo_t;
_Static_assert(sizeof(dcgmIncidentInfo_t) == 1044, "size");
typedef struct { /* DCGM 3; its size was measured, and 64 incidents fill it */
    uint32_t version, overallHealth, incidentCount;
    dcgmIncidentInfo_t incidents[64];
} dcgmHealthResponse_v4;
_Static_assert(sizeof(dcgmHealthResponse_v4) == 0x1050c, "size");
typedef struct {
    uint32_t version, overallHealth, incidentCount;
    dcgmIncidentInfo_t incidents[1024];
} dcgmHealthResponse_v5;
_Static_assert(sizeof(dcgmHealthResponse_v5) == 1069068, "size");
typedef struct {
    uint32_t version;
    dcgmGpuGrp_t groupId;
    uint32_t systems;
    long long updateInterval;
    double maxKeepAge;
} dcgmHealthSetParams_v2;
_Static_assert(sizeof(dcgmHealthSetParams_v2) == 40, "size");

#endif

// Marks functions that a kernel may call too: one definition for the cpu row and the device.
#pragma once

#ifdef __CUDACC__
#define DELTATUNE_HOST_DEVICE __host__ __device__
#else
#define DELTATUNE_HOST_DEVICE
#endif

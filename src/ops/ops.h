// ops::*: the only thing model code calls. Each function checks shapes and dtypes once for all machines (a
// wrong one is our bug: Error{internal} with op and argument), notes its cost and its scratch, and runs the
// row of the stream's table. One header per family, with the formulas.
#pragma once

#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norms.h"
#include "ops/optimizer.h"

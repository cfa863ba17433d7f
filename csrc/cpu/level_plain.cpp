// The kernels for any machine.
#define FORESAY_LEVEL kPlain
#define FORESAY_LEVEL_NAME "plain"
#define FORESAY_WIDTH 4
#define FORESAY_FUSED 0
#define FORESAY_DOTS 0
#define FORESAY_TILES 0
#include "cpu/level.hpp"

// Attention for any machine.
#define FORESAY_WIDTH 4
#define FORESAY_TILES 0
#define FORESAY_KERNEL kPlain
#define FORESAY_KERNEL_NAME "plain"
#include "attention_loops.hpp"

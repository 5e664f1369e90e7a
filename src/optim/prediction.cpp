#include "src/optim/prediction.h"

#include <array>

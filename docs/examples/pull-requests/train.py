"""Train a small network to imitate a fixed one, and print its accuracy on points that it has not seen."""

import argparse

import numpy as np

INPUTS, WIDTH, CLASSES, BATCH = 32, 64, 10, 32
TESTED = 5000  # points that the accuracy is measured on
RATE = 0.2  # at the first step; it falls to 0


def make_network(rng, width):
    """Return the weights of two layers."""
    first = rng.normal(size=(INPUTS, width)) / INPUTS**0.5
    return [first, rng.normal(size=(width, CLASSES)) / width**0.5]


def run_network(network, points):
    """Return the hidden values, and a score of each class."""
    hidden = np.tanh(points @ network[0])
    return hidden, hidden @ network[1]


def train(seed, steps, rate=RATE):
    """Return the accuracy after a training."""
    fixed = np.random.default_rng(0)
    teacher = make_network(fixed, 8)
    tested = fixed.normal(size=(TESTED, INPUTS))
    rng = np.random.default_rng(seed)
    network = make_network(rng, WIDTH)
    for step in range(steps):
        points = rng.normal(size=(BATCH, INPUTS))
        labels = run_network(teacher, points)[1].argmax(axis=1)
        hidden, scores = run_network(network, points)
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(BATCH), labels] -= 1
        back = error @ network[1].T * (1 - hidden**2)
        speed = rate * (1 - step / steps) / BATCH
        network = [network[0] - speed * points.T @ back, network[1] - speed * hidden.T @ error]
    answers = run_network(network, tested)[1].argmax(axis=1)
    return float((answers == run_network(teacher, tested)[1].argmax(axis=1)).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=300_000)
    options = parser.parse_args()
    print(f"acc={100 * train(options.seed, options.steps):.2f}")

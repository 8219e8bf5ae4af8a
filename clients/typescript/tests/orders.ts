/** The tool of the agents that look up orders. */

export function lookup(order: number): string {
    const lines = Array.from(
        { length: 50 },
        (_, n) => `Line ${n} of order ${order}: the goods were weighed, wrapped and put on shelf ${n * order}.`,
    );
    lines.splice(25, 0, `The gate word of order ${order} is ${(order * 7) % 101}.`);
    return lines.join("\n");
}
